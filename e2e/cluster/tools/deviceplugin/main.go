// Deviceplugin is a device plugin of the kubelet whose devices are as well as its standard input says.
//
//	device-plugin FOLDER RESOURCE ID...
//
// FOLDER is the kubelet's plugins_registry. All devices are healthy; each line of the input is `ID HEALTH`, Healthy or
// Unhealthy, and is said to the kubelet at once. The plugin ends with its input.
package main

import (
	"bufio"
	"encoding/binary"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

type plugin struct {
	resource, socket string

	changed *sync.Cond
	version int
	ids     []string
	health  map[string]string
}

func main() {
	folder, resource, ids := os.Args[1], os.Args[2], os.Args[3:]
	p := &plugin{
		resource: resource,
		socket:   filepath.Join(folder, strings.ReplaceAll(resource, "/", "-")+".sock"),
		changed:  sync.NewCond(&sync.Mutex{}),
		ids:      ids,
		health:   map[string]string{},
	}
	for _, id := range ids {
		p.health[id] = "Healthy"
	}
	os.Remove(p.socket)
	listener, err := net.Listen("unix", p.socket)
	if err != nil {
		log.Fatal(err)
	}
	defer os.Remove(p.socket)
	server := &http.Server{Handler: p, Protocols: new(http.Protocols)}
	server.Protocols.SetUnencryptedHTTP2(true)
	go server.Serve(listener)
	p.obey(os.Stdin)
}

// obey says what the lines say until they end.
func (p *plugin) obey(lines io.Reader) {
	for scanner := bufio.NewScanner(lines); scanner.Scan(); {
		id, health, _ := strings.Cut(scanner.Text(), " ")
		p.changed.L.Lock()
		p.health[id] = health
		p.version++
		p.changed.L.Unlock()
		p.changed.Broadcast()
	}
}

// ServeHTTP answers the kubelet's calls: those of a plugin that registers, and those of one that has devices.
func (p *plugin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, io.LimitReader(r.Body, 1<<20))
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	defer w.Header().Set("Grpc-Status", "0")
	switch method := filepath.Base(r.URL.Path); method {
	case "GetInfo":
		send(w, field(1, "DevicePlugin")+field(2, p.resource)+field(3, p.socket)+field(4, "v1beta1"))
	case "ListAndWatch":
		p.list(w, r)
	case "Allocate":
		send(w, field(1, "")) // one container, which is given nothing but the device's name
	default:
		send(w, "")
	}
}

// list sends all devices, and again whenever one has changed.
func (p *plugin) list(w http.ResponseWriter, r *http.Request) {
	for told := -1; ; {
		p.changed.L.Lock()
		for told == p.version {
			p.changed.Wait()
		}
		told = p.version
		said := ""
		for _, id := range p.ids {
			said += field(1, field(1, id)+field(2, p.health[id]))
		}
		p.changed.L.Unlock()
		if r.Context().Err() != nil {
			return
		}
		send(w, said)
	}
}

// field is one of a protobuf message: text, or a message within it.
func field(number byte, value string) string {
	return string(binary.AppendUvarint([]byte{number<<3 | 2}, uint64(len(value)))) + value
}

// send writes one message of gRPC.
func send(w http.ResponseWriter, message string) {
	w.Write(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))))
	io.WriteString(w, message)
	w.(http.Flusher).Flush()
}
