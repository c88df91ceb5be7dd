// A device plugin for tests, of the standard library alone: gRPC is HTTP/2 with five bytes before each message.
module perdure/tools/deviceplugin

go 1.26.5
