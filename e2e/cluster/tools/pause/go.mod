// Holds a pod's namespaces open: the sandbox container gets none of the host's folders, so its program must be static.
module perdure/tools/pause

go 1.26.5
