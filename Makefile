# SPDX-License-Identifier: Apache-2.0
# hearth: `make help` lists the goals. V=1 shows the commands; CC=clang B=build-clang builds elsewhere with another compiler.
B        ?= build
CC       ?= cc
OPT      ?= -O2
SAN      ?=
ISA       =
DEFS     ?=
PREFIX   ?= /usr/local
FUZZ_SECONDS ?= 600
FUZZ_RUNS ?= -1
FUZZ_LEAST ?= 0
Q        := $(if $(V),,@)
# All cores, unless make was started with -j or by another make.
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc)
endif
say       = @$(if $(V),true,printf '  %-7s %s\n' $(1) $(2))

# What Debian builds its own packages with (dpkg-buildflags, hardening=+all). Sanitizers have checks of their own.
HARDEN   := $(if $(SAN),,-fstack-protector-strong -fstack-clash-protection -D_FORTIFY_SOURCE=3 -Wformat -Wformat-security \
            $(if $(filter x86_64,$(shell uname -m)),-fcf-protection))
LDFLAGS  ?= $(if $(SAN),,-Wl,-z,relro,-z,now,-z,noexecstack)
CFLAGS    = -std=c11 $(OPT) $(HARDEN) -g -Wall -Wextra -Werror -Wno-unused-parameter -Wmissing-prototypes -Wvla -fPIC \
            -fvisibility=hidden -pthread $(ISA) $(SAN)
CPPFLAGS  = -D_GNU_SOURCE -I. -I$(B)/gen $(DEFS)
LDLIBS    = -lnng -lprotobuf-c -ljansson -llmdb -lcrypto -levent -levent_pthreads -levent_openssl -lssl -lz -lseccomp -lm
# The rooms of the house, from the lowest to the highest (build-aux/layers.sh).
LAYERS   := base base/ipc graph graph/onnx graph/passes graph/autodiff device modelstore kernels convsel planner planner/bound planner/exact \
            memmgr runtime runtime/tenants engine engine/local engine/serve engine/train engine/query engine/process engine/router client client/cli \
            server server/net server/rpc server/http $(addprefix server/http/,tensors repository trace dashboard) server/daemon
CODE     := $(LAYERS) device/cpu device/fake kernels/ref kernels/cpu kernels/cpu/winograd kernels/cpu/train

# What calls oneDNN is a plug-in: it alone is linked with libdnnl. Test programs and benches look for it in the build folder, by RPATH:
# under the address sanitizer dlopen is called from the sanitizer's library, for which a program's RUNPATH does not count.
DNNL_OBJ := $(patsubst %.c,$(B)/%.o,$(filter-out %_test.c,$(wildcard kernels/dnnl/*.c)))
DNNL     := $(B)/libhearth_dnnl.so
FIND     := -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/..:$$ORIGIN/../..:$$ORIGIN/../../..'

# The CUDA plug-in needs the headers of CUDA 13 and cuDNN 9 and nvcc for its kernels, no library. Without the headers its tests
# are skipped, too; without nvcc they run: they compile the kernels for the host.
CUDA_HOME ?= /usr/local/cuda
CUDA_INC := $(if $(wildcard $(CUDA_HOME)/include/cuda.h),$(if $(wildcard $(CUDA_HOME)/include/cudnn.h),$(wildcard $(CUDA_HOME)/include/cublasLt.h)))
NVCC     := $(wildcard $(CUDA_HOME)/bin/nvcc)
# What GPUs the kernels are made for: Hopper as machine code, others from Ampere on by the driver's compiler.
CUDA_ARCH ?= -gencode arch=compute_90,code=sm_90 -gencode arch=compute_80,code=compute_80
CUDA_CU  := $(wildcard kernels/cuda/*.cu)
CUDA_FATBIN := $(CUDA_CU:%.cu=$(B)/%.fatbin)
CUDA_OBJ := $(patsubst %.c,$(B)/%.o,$(filter-out %_test.c %/entry.c,$(wildcard device/cuda/*.c kernels/cuda/*.c)))
CUDA_ENTRY := $(B)/kernels/cuda/entry.o $(B)/kernels/cuda/images.o $(B)/graph/attr.o $(B)/graph/attention.o $(B)/graph/tensor.o $(B)/graph/op.o
CUDA_FAKE := $(patsubst %.c,$(B)/%.o,$(wildcard device/cuda/fake/*.c kernels/cuda/fake/*.c)) $(CUDA_CU:%.cu=$(B)/%.host.o)
PLUGIN   := $(if $(CUDA_INC),$(if $(NVCC),$(B)/libhearth_cuda.so))
FAKE_PLUGIN := $(if $(CUDA_INC),$(B)/fake/libhearth_cuda.so)

PROTOS   := $(wildcard graph/onnx/*.proto client/*.proto)
GEN_C    := $(PROTOS:%.proto=$(B)/gen/%.pb-c.c)
SRC      := $(filter-out %_test.c %_main.c ,$(wildcard $(CODE:%=%/*.c)))
TESTS    := $(wildcard $(CODE:%=%/*_test.c) device/cuda/*_test.c kernels/cuda/*_test.c kernels/dnnl/*_test.c tests/*_test.c tests/cuda/*_test.c)
CUDA_TESTBIN := $(patsubst %.c,$(B)/%,$(filter device/cuda/% kernels/cuda/% tests/cuda/%,$(TESTS)))
TESTBIN  := $(TESTS:%.c=$(B)/%)
BENCHBIN := $(patsubst %.c,$(B)/%,$(wildcard tests/bench/*.c))
FUZZERS  := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/*_fuzz.c))
OBJ      := $(SRC:%.c=$(B)/%.o) $(GEN_C:%.c=%.o)

.PHONY: all docs all-tests help deps deps-test deps-clients deps-lint tests test check check-asan check-tsan lint format fuzz bench bench-table bench-policies bench-train bench-winograd conformance demo gpu-check bundle \
        install uninstall clean
all: $(B)/hearth $(B)/hearthd $(B)/libhearth.so $(DNNL) $(PLUGIN)

help:
	@echo 'make            builds hearth, hearthd, libhearth.so in $(B)/ (installs missing Debian packages first)'
	@echo 'make demo       imports two models, serves them, classifies handwritten digits, shows the memory ledger, trains one, leaves a page to look at'
	@echo 'make check      builds and runs all tests (TAP)         make check-asan, check-tsan   the same under sanitizers'
	@echo 'make lint       layers, headers, exports, format, pages, cppcheck   make fuzz FUZZ_SECONDS=600   importer, models that are run, wire decoder, rings, bodies and JSON over HTTP'
	@echo 'make bench      a local socket against a bare one, serving, the planner on well-known networks (VGG19=FILE.onnx: --spill)    make bench-table   against onnxruntime and OpenVINO (PyPI)'
	@echo 'make bench-train   training steps against PyTorch, without a limit and at the peak it has with checkpoints (PyPI)'
	@echo 'make bench-policies   training steps under every policy and budget, measured (35 minutes; PyPI exports the networks)'
	@echo 'make bench-winograd   3x3 convolutions of well-known networks against oneDNN (ten minutes)'
	@echo 'make conformance   the onnx package'"'"'s backend node tests (PyPI) through the client, as a table'
	@echo 'make deps-clients   installs tritonclient and perf_analyzer (PyPI) outside of the tree, for the tests with other clients'
	@echo 'make gpu-check  on a machine with an NVIDIA GPU: operators, models and training on it, as a table    make bundle   what such a machine needs for it'
	@echo 'make deps       installs the Debian packages that are missing        make install PREFIX=/usr/local DESTDIR=, uninstall'

# Packages: each goal asks first whether something is missing; nothing is installed twice.
deps:
	$(Q)sh build-aux/deps.sh build
deps-test:
	$(Q)sh build-aux/deps.sh test
deps-lint:
	$(Q)sh build-aux/deps.sh lint
# Clients that others wrote, from PyPI: without them tests/clients_test.py is skipped.
deps-clients:
	$(Q)sh build-aux/deps.sh clients
	$(Q)sh build-aux/clients.sh
$(GEN_C) $(OBJ): | deps

# Kernels are loops for the vectoriser; their files ask for it.
VECTOR_WIDTH := $(if $(filter x86_64,$(shell uname -m)),-mprefer-vector-width=512)
KERNEL_OPT ?= -O3
$(B)/kernels/%.o: override OPT = $(KERNEL_OPT) -fno-math-errno -fno-trapping-math -ffp-contract=fast -Wno-psabi $(VECTOR_WIDTH)
# Compiled once per instruction set; what runs is asked of the processor.
ifeq ($(shell uname -m),x86_64)
$(B)/kernels/cpu/%_avx512.o: ISA = -mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx2 -mfma
$(B)/kernels/cpu/%_amx.o: ISA = -mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx512bf16 -mamx-tile -mamx-bf16 -mavx2 -mfma
$(B)/kernels/cpu/%_avx2.o: ISA = -mavx2 -mfma -mprefer-vector-width=256
endif
# Not instrumented for threads: loops that would take minutes, of kernels and of what measures them, which walks the caches before
# each run. What orders their threads, device/cpu/team.c, is.
build-tsan/kernels/%.o: override SAN = -w
build-tsan/convsel/bench_%.o build-tsan/convsel/link.o: override SAN = -w
# Of the kernels only the reference guides fuzzers, who would count millions of branches otherwise; all are checked.
build-fuzz/kernels/cpu/%.o: override SAN = $(FUZZ_CHECKS)

# The page that hearthd serves: its files as arrays of bytes; the scripts, in this order, are one.
PAGE_JS  := $(addprefix server/http/dashboard/,dom.js charts.js histogram.js memory.js models.js tenants.js jobs.js main.js)
bytes     = { echo 'static const unsigned char page_$(1)[] = {' && cat $(2) | od -An -v -tx1 | \
            sed 's/\([0-9a-f][0-9a-f]\)/0x\1,/g' && echo '};'; }
$(B)/gen/page.inc: server/http/dashboard/page.html server/http/dashboard/page.css $(PAGE_JS)
	@mkdir -p $(@D)
	$(Q){ $(call bytes,html,server/http/dashboard/page.html) && $(call bytes,css,server/http/dashboard/page.css) && $(call bytes,js,$(PAGE_JS)); } >$@.new && \
	    mv $@.new $@
$(B)/server/http/dashboard/http_dashboard_page.o: $(B)/gen/page.inc

$(B)/gen/%.pb-c.c: %.proto
	@mkdir -p $(@D)
	$(Q)protoc-c --proto_path=. --c_out=$(B)/gen $< 2>$@.log || { cat $@.log; exit 1; }
$(B)/gen/%.o: $(B)/gen/%.c
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -Wno-missing-prototypes -MMD -MP -c -o $@ $<
$(B)/%.o: %.c | $(GEN_C) deps
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<
$(B)/libhth.a: $(OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $(OBJ)
$(B)/hearth: $(B)/client/cli/hearth_main.o $(B)/libhth.a
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -pie -o $@ $^ $(LDLIBS)
$(B)/hearthd: $(B)/server/daemon/hearthd_main.o $(B)/libhth.a
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -pie -o $@ $^ $(LDLIBS)
# Manual pages and completions: what the tables of commands and settings decide is printed by hearth-docs.
$(B)/hearth-docs: $(B)/client/cli/docs_main.o $(B)/libhth.a
	$(Q)$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)
PAGES    := hearth.1 hearthd.8 hearth.h.3
SHELLS   := bash/hearth bash/hearthd zsh/_hearth zsh/_hearthd
docs: $(PAGES:%=$(B)/man/%) $(SHELLS:%=$(B)/completions/%)
$(B)/man/hearth.1: client/cli/hearth.1.in
$(B)/man/hearthd.8: server/daemon/hearthd.8.in
$(B)/man/hearth.h.3: client/hearth.h.3
$(PAGES:%=$(B)/man/%): $(B)/hearth-docs
	@mkdir -p $(@D)
	$(Q)for part in commands global settings; do $(B)/hearth-docs $$part >$@.$$part || exit 1; done
	$(Q)sed -e '/^@COMMANDS@$$/{r $@.commands' -e 'd;}' -e '/^@GLOBAL@$$/{r $@.global' -e 'd;}' \
	    -e '/^@SETTINGS@$$/{r $@.settings' -e 'd;}' $(filter client/cli/%.in server/daemon/%.in client/%.3,$^) >$@
$(SHELLS:%=$(B)/completions/%): $(B)/hearth-docs
	@mkdir -p $(@D)
	$(Q)$(B)/hearth-docs $(patsubst %/,%,$(dir $(@:$(B)/completions/%=%)))$(if $(filter %hearthd,$@),-daemon) >$@
$(DNNL): $(DNNL_OBJ)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libhearth_dnnl.so -Wl,-z,defs -o $@ $^ -ldnnl
$(B)/libhearth.so: client/libhearth.map $(OBJ)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libhearth.so.0 -Wl,--version-script=client/libhearth.map -Wl,-z,defs \
	    -o $@ $(OBJ) $(LDLIBS)
$(B)/docs/embed: docs/embed.c $(B)/libhearth.so
	@mkdir -p $(@D)
	$(Q)ln -sf libhearth.so $(B)/libhearth.so.0
	$(Q)$(CC) $(CFLAGS) -Iclient -o $@ $< -L$(B) -lhearth -Wl,-rpath,'$$ORIGIN/..'
$(B)/device/cuda/%.o $(B)/kernels/cuda/%.o $(B)/tests/cuda/%.o: CPPFLAGS += -isystem $(CUDA_HOME)/include
# Kernels are compiled twice: for GPUs, and for the host, where the fake driver of the tests calls them.
$(B)/kernels/cuda/%.fatbin: kernels/cuda/%.cu
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) -std=c++17 -I. --fmad=true -O3 -fatbin $(CUDA_ARCH) -MD -MF $(@:.fatbin=.fatbin.d) -MT $@ -o $@ $<
$(B)/kernels/cuda/%.host.o: kernels/cuda/%.cu
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -Wno-unused-function -MMD -MP -x c -c -o $@ $<
$(B)/kernels/cuda/images.S: $(CUDA_FATBIN) Makefile
	@mkdir -p $(@D)
	@{ echo '.section .note.GNU-stack,"",%progbits'; echo '.section .rodata'; for f in $(notdir $(CUDA_CU:.cu=)); do \
	    printf '.balign 64\n.globl hth_image_%s\n.hidden hth_image_%s\nhth_image_%s: .incbin "$(B)/kernels/cuda/%s.fatbin"\n.byte 0\n' $$f $$f $$f $$f; done; \
	    echo '.section .data.rel.ro,"aw"'; echo '.balign 8'; echo '.globl hth_cuda_images'; echo '.hidden hth_cuda_images'; echo 'hth_cuda_images:'; \
	    for f in $(notdir $(CUDA_CU:.cu=)); do echo ".quad name_$$f, hth_image_$$f"; done; \
	    echo '.section .rodata'; for f in $(notdir $(CUDA_CU:.cu=)); do echo "name_$$f: .asciz \"$$f\""; done; \
	    echo '.balign 4'; echo '.globl hth_cuda_n_images'; echo '.hidden hth_cuda_n_images'; echo 'hth_cuda_n_images: .long $(words $(CUDA_CU))'; } >$@
$(B)/kernels/cuda/images.o: $(B)/kernels/cuda/images.S
	$(Q)$(CC) -c -o $@ $<
$(B)/libhearth_cuda.so: $(CUDA_OBJ) $(CUDA_ENTRY)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libhearth_cuda.so -Wl,-z,defs -o $@ $^ -lm
ifeq ($(CUDA_INC),)
$(CUDA_TESTBIN): $(B)/%:
	@mkdir -p $(@D)
	@printf '#!/bin/sh\necho "1..0 # SKIP no headers of CUDA 13 and cuDNN 9 in $(CUDA_HOME)/include"\n' >$@ && chmod +x $@
else
$(CUDA_TESTBIN): $(B)/%: $(B)/%.o $(CUDA_OBJ) $(CUDA_FAKE) $(B)/libhth.a | $(DNNL)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(FIND) -o $@ $^ $(LDLIBS) -lcmocka
endif
$(filter-out $(CUDA_TESTBIN),$(TESTBIN)): $(B)/%: $(B)/%.o $(B)/libhth.a | $(DNNL)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(FIND) -o $@ $^ $(LDLIBS) -lcmocka
$(BENCHBIN): $(B)/%: $(B)/%.o $(B)/libhth.a | $(DNNL)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(FIND) -o $@ $^ $(LDLIBS)

tests: deps-test
	$(Q)$(MAKE) --no-print-directory all-tests
all-tests: all $(TESTBIN) $(B)/docs/embed $(FAKE_PLUGIN)
	@:
# Two at a time, or TEST_JOBS: many of them are servers that compute by all cores, many wait. Those that take longest come first, so
# that none of them is left to run alone.
TEST_JOBS ?= 2
LONG     := $(addprefix %/,soak_test.py gpu_check_test.sh page_test.py python_test.py security_test.py bodies_test.py onednn_test.sh child_test cli_test router_test \
            train_test proxy_test cuda_engine_test plan_policy_test plan_train_test train_eval_test plan_curve_test drain_test)
first     = $(filter $(LONG),$(1)) $(filter-out $(LONG),$(1))
SCRIPTS  := $(wildcard tests/*_test.sh tests/*_test.py)
RUN_TESTS = HEARTH_BUILD=$(B) CC='$(CC)' CUDA_HOME='$(CUDA_HOME)' CMOCKA_MESSAGE_OUTPUT=TAP prove $(if $(V),-v) --timer --directives -j $(TEST_JOBS) \
            -e 'sh build-aux/tap.sh'
test: tests
	$(Q)$(RUN_TESTS) $(call first,$(TEST_SCRIPTS) $(TESTBIN))
check: tests
	$(Q)$(RUN_TESTS) $(call first,$(SCRIPTS) $(TESTBIN))

# The sanitizers have a build folder each. -w: what they add to the code makes gcc guess wrongly; the plain build has -Werror.
ASAN := -w -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=undefined,float-cast-overflow -fno-omit-frame-pointer -g1
# Its search for leaks crashes on what threads keep in libraries that were opened at run time: it is not to look there.
check-asan:
	$(Q)ASAN_OPTIONS=detect_leaks=1:intercept_tls_get_addr=0 LSAN_OPTIONS=suppressions=build-aux/lsan.supp \
	    $(MAKE) --no-print-directory test B=build-asan OPT=-O1 KERNEL_OPT=-O2 SAN='$(ASAN)' DEFS=-DHTH_DEBUG NVCC=
# Under the thread sanitizer: what has threads. Planner, graph and kernels compute on the thread that calls them, and the kernels are
# not instrumented; openmp_test and the tests of the server run them with several threads. Of CUDA's, those with an engine, over the
# fake driver; of the scripts, those in which many clients are at a hearthd. Reports are read behind the tests: a process that a test
# starts has its own, and is often killed.
TSAN_TESTS := $(filter-out graph/% planner/% kernels/% tests/cuda/% tests/%_values_test.c tests/winograd_% tests/specialize_% graph/passes/pass_test.c graph/autodiff/train_grad_test.c graph/autodiff/train_torch_test.c,$(TESTS)) kernels/dnnl/openmp_test.c \
            $(patsubst %,tests/cuda/cuda_%_test.c,devices engine metrics tenant)
TSAN_SCRIPTS := $(addprefix tests/,bodies_test.py clients_test.py metrics_test.py security_test.py)
check-tsan:
	$(Q)rm -f build-tsan/report.*
	$(Q)rc=0; HEARTH_TEST_SECONDS=1800 TSAN_OPTIONS='suppressions=$(CURDIR)/build-aux/tsan.supp log_path=$(CURDIR)/build-tsan/report' \
	    $(MAKE) --no-print-directory test B=build-tsan OPT=-O1 KERNEL_OPT=-O1 SAN='-w -fsanitize=thread' DEFS=-DHTH_DEBUG NVCC= TESTS='$(TSAN_TESTS)' TEST_SCRIPTS='$(TSAN_SCRIPTS)' || rc=1; \
	for f in build-tsan/report.*; do [ ! -e "$$f" ] || { cat "$$f"; rc=1; }; done; exit $$rc
lint: deps-lint
	$(Q)$(MAKE) --no-print-directory all docs
	$(Q)CUDA_HOME='$(CUDA_HOME)' sh build-aux/lint.sh $(B)
format: deps-lint
	git ls-files '*.c' '*.h' | xargs clang-format -i

FUZZ_CHECKS := -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=undefined,float-cast-overflow
# libFuzzer targets, as many at a time as make has jobs; each runs FUZZ_SECONDS, or FUZZ_RUNS executions where
# that is less, from the seeds in tests/data/fuzz, an archive a target. All together must come to FUZZ_LEAST executions.
fuzz: deps-lint
	$(Q)$(MAKE) --no-print-directory build-fuzz/libhth.a B=build-fuzz CC=clang OPT=-O1 KERNEL_OPT=-O1 \
	    SAN='-fsanitize=fuzzer-no-link $(FUZZ_CHECKS)'
	$(Q)$(MAKE) --no-print-directory $(FUZZERS:%=run-%)
	$(Q)cat $(FUZZERS:%=build-fuzz/%.log) | awk '/^stat::number_of_executed_units/ { n += $$2 } \
	    END { printf "executions of all: %d, at least %d needed\n", n, $(FUZZ_LEAST); exit n < $(FUZZ_LEAST) }'
run-%_fuzz:
	$(Q)clang -std=c11 -O1 -g -D_GNU_SOURCE -I. -Ibuild-fuzz/gen -fsanitize=fuzzer $(FUZZ_CHECKS) -pthread \
	    -o build-fuzz/$*_fuzz tests/fuzz/$*_fuzz.c build-fuzz/libhth.a $(LDLIBS)
	@rm -rf build-fuzz/seeds-$*_fuzz && mkdir -p build-fuzz/corpus-$*_fuzz build-fuzz/seeds-$*_fuzz
	$(Q)[ ! -e tests/data/fuzz/$*_fuzz.tar ] || tar xmf tests/data/fuzz/$*_fuzz.tar -C build-fuzz/seeds-$*_fuzz
	$(call say,FUZZ,'$*_fuzz ($(FUZZ_SECONDS) s)')
	$(Q)build-fuzz/$*_fuzz -max_total_time=$(FUZZ_SECONDS) -runs=$(FUZZ_RUNS) -rss_limit_mb=4096 -timeout=20 -print_final_stats=1 build-fuzz/corpus-$*_fuzz \
	    build-fuzz/seeds-$*_fuzz tests/data/onnx >build-fuzz/$*_fuzz.log 2>&1 || { tail -40 build-fuzz/$*_fuzz.log; exit 1; }
	$(Q)sed -n -E 's/^stat::(number_of_executed_units|peak_rss_mb): */$*_fuzz: \1 /p' build-fuzz/$*_fuzz.log

bench: all
	$(Q)$(MAKE) --no-print-directory $(BENCHBIN)
	$(Q)for b in $(BENCHBIN); do echo "== $$b"; $$b || exit 1; done
	$(Q)[ -z "$(VGG19)" ] || sh tests/spill_test.sh $(B) "$(VGG19)" x 3,224,224 32 50 $(B)/bench-store
bench-table: all
	$(Q)python3 tests/bench/table.py $(B)/hearth
bench-train: all
	$(Q)python3 tests/bench/train_table.py $(B)/hearth
bench-policies: all
	$(Q)python3 tests/bench/train_policies.py $(B)/hearth
bench-winograd: all
	$(Q)$(MAKE) --no-print-directory $(BENCHBIN)
	$(Q)sh tests/bench/winograd.sh $(B)
conformance: all
	$(Q)sh tests/tools/conformance.sh $(B)
# On a machine with a GPU; the head of tests/gpu_check.sh names what can be set.
CUDA_CHECKS := $(addprefix kernels/cuda/,$(addsuffix _test,attention attention_parts elementwise norm gemm train_ops train_rare rare)) tests/cuda/cuda_probe_test tests/cuda/cuda_speed_test
gpu-check: all
	$(Q)$(MAKE) --no-print-directory $(CUDA_CHECKS:%=$(B)/%)
	$(Q)sh tests/gpu_check.sh $(B) $(B)/gpu-check '$(CUDA_HOME)'
# The fake driver as a plug-in file: what gpu-check runs is itself run by tests/gpu_check_test.sh.
$(B)/fake/libhearth_cuda.so: $(CUDA_OBJ) $(CUDA_FAKE) $(B)/libhth.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) -shared -Wl,-Bsymbolic -o $@ $^ $(LDLIBS)
# What such a machine needs to be checked without Debian's packages: programs with their libraries inside or beside them, without
# what only debuggers read. The archive is what is carried there.
BUNDLE   := $(B)/bundle
STATIC_LIBS = -Wl,-Bstatic -lnng -lmbedtls -lmbedx509 -lmbedcrypto -lprotobuf-c -ljansson -llmdb -levent_openssl -levent -levent_pthreads -lssl -lcrypto -lz -lseccomp \
              -Wl,-Bdynamic -lm -Wl,--disable-new-dtags -s
BUNDLE_PY = tests/gpu_compare.py tests/gpu_torch.py tests/gpu_pagein.py tests/bench/train_policies.py tests/tools/record_problems.py tests/tools/make_models.py
bundle: all
	$(if $(PLUGIN),,$(error bundle: there is no plug-in: no headers of CUDA 13 and cuDNN 9, or no nvcc, in $(CUDA_HOME)))
	$(Q)$(MAKE) --no-print-directory $(CUDA_CHECKS:%=$(B)/%)
	$(Q)rm -rf $(BUNDLE) && mkdir -p $(BUNDLE)/build/kernels/cuda $(BUNDLE)/build/tests/cuda $(BUNDLE)/build/lib $(BUNDLE)/tests/data $(BUNDLE)/tests/bench $(BUNDLE)/tests/tools
	$(Q)for p in hearth:client/cli/hearth_main.o hearthd:server/daemon/hearthd_main.o; do \
	    $(CC) $(CFLAGS) $(LDFLAGS) -pie -o $(BUNDLE)/build/$${p%%:*} $(B)/$${p##*:} $(B)/libhth.a $(STATIC_LIBS) -Wl,-rpath,'$$ORIGIN/lib' || exit 1; done
	$(Q)for t in $(CUDA_CHECKS); do $(CC) $(CFLAGS) -o $(BUNDLE)/build/$$t $(B)/$$t.o $(CUDA_OBJ) $(CUDA_FAKE) $(B)/libhth.a \
	    $(STATIC_LIBS) -lcmocka -Wl,-rpath,'$$ORIGIN/../lib:$$ORIGIN/../../lib' $(FIND) || exit 1; done
	$(Q)cp $(PLUGIN) $(BUNDLE)/build/
	$(Q)[ -z "$(BUNDLE_CPU)" ] || $(CC) $(CFLAGS) -shared -Wl,-soname,libhearth_dnnl.so -s -o $(BUNDLE)/build/libhearth_dnnl.so $(DNNL_OBJ) \
	    -ldnnl -Wl,--disable-new-dtags -Wl,-rpath,'$$ORIGIN/lib'
	$(Q)ldd $(BUNDLE)/build/hearth $(BUNDLE)/build/kernels/cuda/norm_test $(if $(BUNDLE_CPU),$(BUNDLE)/build/libhearth_dnnl.so) | awk '$$3 ~ "^/" {print $$3}' | sort -u | \
	    grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*)\.so' | xargs -I{} cp -L {} $(BUNDLE)/build/lib/
	$(Q)cp -r tests/data/digits tests/data/devices $(BUNDLE)/tests/data/
	$(Q)for f in tests/gpu_check.sh $(BUNDLE_PY); do cp $$f $(BUNDLE)/$$f || exit 1; done
	$(Q)printf '#!/bin/sh\ncd "$$(dirname "$$0")" && exec sh tests/gpu_check.sh build gpu-check "$$@"\n' >$(BUNDLE)/check && chmod +x $(BUNDLE)/check
	$(Q)tar czf $(BUNDLE).tar.gz -C $(B) bundle
	$(Q)du -sh $(BUNDLE) $(BUNDLE).tar.gz
demo: all
	$(Q)sh tests/demo.sh $(B)

# What is installed, for uninstall too. DESTDIR stages it; paths in files are those under PREFIX.
VERSION  := $(shell sed -n 's/^.define HEARTH_VERSION *"\(.*\)"/\1/p' client/hearth.h)
LIBDIR   ?= $(PREFIX)/lib
UNITDIR  ?= $(PREFIX)/lib/systemd/system
MANDIR   ?= $(PREFIX)/share/man
BASHDIR  ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR   ?= $(PREFIX)/share/zsh/site-functions
CONFDIR  ?= $(if $(filter /usr,$(PREFIX)),,$(PREFIX))/etc/hearth
INSTALLED = $(PREFIX)/bin/hearth $(PREFIX)/sbin/hearthd $(LIBDIR)/libhearth.so.0 $(LIBDIR)/libhearth_dnnl.so $(LIBDIR)/libhearth_cuda.so \
            $(LIBDIR)/libhearth.so $(LIBDIR)/pkgconfig/hearth.pc $(PREFIX)/include/hearth.h $(UNITDIR)/hearthd.service \
            $(PREFIX)/lib/sysusers.d/hearth.conf $(MANDIR)/man1/hearth.1 $(MANDIR)/man8/hearthd.8 $(MANDIR)/man3/hearth.h.3 \
            $(patsubst zsh/%,$(ZSHDIR)/%,$(SHELLS:bash/%=$(BASHDIR)/%))
fill      = sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@LIBDIR@|$(LIBDIR)|g' -e 's|@VERSION@|$(VERSION)|g' \
            -e 's|@CONFDIR@|$(CONFDIR)|g'
install: all docs
	install -D -m 755 $(B)/hearth $(DESTDIR)$(PREFIX)/bin/hearth
	install -D -m 755 $(B)/hearthd $(DESTDIR)$(PREFIX)/sbin/hearthd
	install -D -m 755 $(B)/libhearth.so $(DESTDIR)$(LIBDIR)/libhearth.so.0
	install -D -m 755 $(DNNL) $(DESTDIR)$(LIBDIR)/libhearth_dnnl.so
	ln -sf libhearth.so.0 $(DESTDIR)$(LIBDIR)/libhearth.so
	$(if $(PLUGIN),install -D -m 755 $(PLUGIN) $(DESTDIR)$(LIBDIR)/libhearth_cuda.so)
	install -D -m 644 client/hearth.h $(DESTDIR)$(PREFIX)/include/hearth.h
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(UNITDIR)
	$(fill) client/hearth.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/hearth.pc
	$(fill) server/daemon/hearthd.service.in >$(DESTDIR)$(UNITDIR)/hearthd.service
	for p in $(PAGES); do install -d $(DESTDIR)$(MANDIR)/man$${p##*.} && \
	    $(fill) $(B)/man/$$p >$(DESTDIR)$(MANDIR)/man$${p##*.}/$$p || exit 1; done
	install -D -m 644 -t $(DESTDIR)$(BASHDIR) $(B)/completions/bash/hearth $(B)/completions/bash/hearthd
	install -D -m 644 -t $(DESTDIR)$(ZSHDIR) $(B)/completions/zsh/_hearth $(B)/completions/zsh/_hearthd
	install -D -m 644 server/daemon/hearth.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/hearth.conf
	$(if $(DESTDIR),,@[ "$$(id -u)" != 0 ] || ldconfig)
	[ -e $(DESTDIR)$(CONFDIR)/hearthd.conf ] || install -D -m 644 server/daemon/hearthd.conf $(DESTDIR)$(CONFDIR)/hearthd.conf
# A configuration that was changed stays.
uninstall:
	! cmp -s server/daemon/hearthd.conf $(DESTDIR)$(CONFDIR)/hearthd.conf || rm $(DESTDIR)$(CONFDIR)/hearthd.conf
	rm -f $(INSTALLED:%=$(DESTDIR)%)
clean:
	rm -rf build build-asan build-tsan build-fuzz build-clang

-include $(shell find $(B) -name '*.d' 2>/dev/null)
