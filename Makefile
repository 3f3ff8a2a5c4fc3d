# Everything a fresh Debian machine with Go lacks is installed by `make deps`,
# which the other targets call. All of it runs as root.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# The same flags for every build, so that packages are compiled once.
BUILD   := -trimpath -ldflags "-s -w -X github.com/weftnet/weft/daemon.Version=$(VERSION)"
CACHE   ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/weft

export CGO_ENABLED ?= 0

.DEFAULT_GOAL := help
.PHONY: help build image demo test test-attack test-long prove bench lint generate deps flanneld clean
.PHONY: kubernetes-programs kubernetes-cached kubernetes-up kubernetes-down test-kubernetes test-kubernetes-smoke bench-kubernetes

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | column -t -s "$$(printf '\t')"

build: ## Build bin/weft, bin/weft-agent, bin/weft-controller, bin/weft-cni, bin/weft-dns and bin/weft-dns-server
	$(GO) build $(BUILD) -o bin/ ./cmd/...
	@ln -sf weft bin/kubectl-weft && ln -sf weft bin/kubectl_complete-weft

image: build ## Write bin/weft-image.tar, the container image of VERSION
	GOOS= GOARCH= $(GO) run ./build/image -version $(VERSION) -o bin/weft-image.tar bin

demo: deps build ## Bring up three nodes, show what Weft does, and stop
	@PATH="$(CURDIR)/bin:$$PATH" sh demo/demo.sh

test: deps build flanneld lint ## Lint, then every test; needs root
	@test "$$(id -u)" = 0 || { echo "make test needs root: it makes network namespaces and sends packets" >&2; exit 1; }
	$(GO) test -timeout 30m -p 2 ./...

test-attack: deps ## Every attack on a cluster of every plug-in, and a table of what came of it; needs root
	@test "$$(id -u)" = 0 || { echo "make test-attack needs root: it makes network namespaces and sends packets" >&2; exit 1; }
	$(GO) -C test/attack test -count=1 -timeout 20m

# The packages with property tests, whose number of cases is a flag.
PROPERTIES = $(filter-out $(REGISTRIES),$(addprefix ./,$(sort $(dir $(shell git grep -l pgregory.net/rapid -- '*_test.go')))))

# Those whose properties are held against a real server, where a case takes a tenth of
# a second.
REGISTRIES = ./registry/etcd/ ./registry/kubernetes/

test-long: deps build flanneld ## The random suites with many more cases, long kill tests, and changes between all plug-ins
	WEFT_CONFORMANCE_CLUSTERS=300 $(GO) test -count=1 -timeout 60m ./datapath/...
	$(GO) test -count=1 -timeout 60m -p 1 $(PROPERTIES) -rapid.checks=20000
	$(GO) test -count=1 -timeout 60m -p 1 $(REGISTRIES) -rapid.checks=2000
	WEFT_EXPLORE=long $(GO) test -count=1 -timeout 240m -p 1 ./plugin/... ./service/... ./ipam -run '^TestAllInterleavings$$' -v
	$(GO) test -count=1 -timeout 60m ./test/flannel
	$(GO) test -count=1 -timeout 120m ./test/kill -kills 1000 -seed "$$(date +%s)"
	$(GO) test -count=1 -timeout 60m ./test/change -matrix -kills 50 -seed "$$(date +%s)"

prove: deps ## A million random packets each: network policies, with 2,000 real ones, and Services, with pools, ports of pods and name servers, against their oracles; needs root
	@test "$$(id -u)" = 0 || { echo "make prove needs root: it makes network namespaces and sends packets" >&2; exit 1; }
	$(GO) test -count=1 -timeout 60m -v ./test/policy -run '^Test(Oracle|Enforceable|Packets)$$' \
		-cases 1000000 -packets 2000 -seed $${SEED:-$$(date +%Y%m%d)}
	$(GO) test -count=1 -timeout 60m -v ./test/service -run '^Test(Told|Tables|Cluster)$$' \
		-cases 1000000 -seed $${SEED:-$$(date +%Y%m%d)}

bench: deps build ## Measure against hand-built networks, policies and Services at scale, and names beside CoreDNS; rewrites docs/benchmarks.md and docs/{policy,services,faults,dns}-measured.md
	$(GO) run ./bench -only traffic,attach,memory,up,failover -o docs/benchmarks.md
	$(GO) run ./bench -only policy,tenants -notes bench/policy-notes.md -o docs/policy-measured.md
	@sh test/kubernetes/programs/build $(KUBERNETES)/bin etcd kube-apiserver kube-proxy coredns
	$(GO) run ./bench -only services -kubernetes $(KUBERNETES)/bin -notes bench/services-notes.md -o docs/services-measured.md
	$(GO) run ./bench -only faults -away 5m -kubernetes $(KUBERNETES)/bin -notes bench/faults-notes.md -o docs/faults-measured.md
	$(GO) run ./bench -only names -kubernetes $(KUBERNETES)/bin -notes bench/names-notes.md -o docs/dns-measured.md

lint: ## gofmt, vet, staticcheck, and the rules of the tree
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "run gofmt -w on these" >&2; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) test -count=1 ./internal/rules

# The packages with golden files, whose tests have the flag.
GOLDEN = $(addprefix ./,$(sort $(dir $(shell git grep -l -e 'weft/internal/golden"' -e 'flag.Bool."update"' -- '*_test.go'))))

generate: ## Rewrite the golden files of the tests from what the code does now
	$(GO) test $(GOLDEN) -update

deps: ## Install what the machine lacks
	@sh build/deps.sh

# What a real Kubernetes cluster runs, each program built once.
KUBERNETES = $(CACHE)/kubernetes
PLUGIN    ?= openshift-subnet
NODES     ?= 3

kubernetes-programs: deps ## Build the programs and images of a real Kubernetes cluster, and its tests, once
	@sh test/kubernetes/deps.sh $(KUBERNETES)/bin
	@sh test/kubernetes/programs/build $(KUBERNETES)/bin $(PROGRAMS)
	@$(GO) run ./test/kubernetes/images/write $(KUBERNETES)/bin $(KUBERNETES)/images >/dev/null

kubernetes-cached: # Fails unless all of the programs are built
	@sh test/kubernetes/programs/build -n $(KUBERNETES)/bin 2>/dev/null

# A cluster does not need the end-to-end tests, which take the longest to build.
kubernetes-up: PROGRAMS = kubectl kube-apiserver kubelet kube-controller-manager kube-scheduler kube-proxy \
	agnhost containerd containerd-shim-runc-v2 ctr coredns helm
kubernetes-up: kubernetes-programs image ## Bring up a Kubernetes cluster of NODES under Weft with PLUGIN, and print its kubeconfig
	$(GO) build $(BUILD) -o bin/ ./test/kubernetes/cmd/kubernetes
	@bin/kubernetes up -bin $(KUBERNETES)/bin -images $(KUBERNETES)/images -nodes $(NODES) -weft $(PLUGIN)

kubernetes-down: ## End the Kubernetes cluster, and leave nothing of it
	@[ -x bin/kubernetes ] || $(GO) build $(BUILD) -o bin/ ./test/kubernetes/cmd/kubernetes
	@bin/kubernetes down

test-kubernetes: kubernetes-programs image ## Every test on real Kubernetes clusters, upstream's Conformance specs among them; needs root
	@sh test/kubernetes/suite full $(KUBERNETES)

test-kubernetes-smoke: kubernetes-programs image ## One cluster, a few stories and a dozen of upstream's specs
	@sh test/kubernetes/suite smoke $(KUBERNETES)

bench-kubernetes: kubernetes-programs image ## Measure on real Kubernetes clusters; rewrites docs/kubernetes-measured.md
	$(GO) test -count=1 -timeout 25m ./test/kubernetes/stories -plugin openshift-subnet,flannel \
		-run '^TestStories$$/./^(up|burst|agents_die|node_dies)$$' -report $(CURDIR)/docs/kubernetes-measured.md

flanneld: ## Build the flanneld that the interoperability tests run beside
	@sh test/flannel/build-flanneld $(CACHE)

clean: ## Remove what build made
	rm -rf bin
