// Versitygw is the S3 server of versity/versitygw over a folder, without what nobody here needs of its own program:
// clouds to forward to, a management client, and a suite of tests that takes longer to compile than the server.
//
//	versitygw [--region REGION] --port ADDRESS:PORT FOLDER
//
// The environment has ROOT_ACCESS_KEY and ROOT_SECRET_KEY. Numbers are the defaults of its own program.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

func main() {
	port := flag.String("port", "", "address and port to listen on")
	region := flag.String("region", "", "region that clients sign for")
	flag.Parse()
	folder := flag.Arg(0)

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, folder, *port, *region); err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context, folder, port, region string) error {
	if err := (meta.XattrMeta{}).Test(folder); err != nil {
		return err
	}
	backend, err := posix.New(folder, meta.XattrMeta{}, posix.PosixOpts{
		Concurrency:         5000,
		CopyObjectThreshold: 5 << 30,
	})
	if err != nil {
		return err
	}
	return embedgw.RunVersityGW(ctx, backend, &embedgw.Config{
		RootUserAccess:    os.Getenv("ROOT_ACCESS_KEY"),
		RootUserSecret:    os.Getenv("ROOT_SECRET_KEY"),
		Region:            region,
		Ports:             []string{port},
		MaxConnections:    250000,
		MaxRequests:       100000,
		MultipartMaxParts: 10000,
	})
}
