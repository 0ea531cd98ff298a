# SPDX-License-Identifier: Apache-2.0
# Tests, the same under sanitizers, fuzzers, and what reads the code. tests/README.md: which test lives where, how
# to run one.
TESTS    := $(wildcard $(patsubst %,%/*_test.c,$(CODE) device/cuda kernels/cuda kernels/dnnl tests tests/cuda tests/independence))
TESTBIN  := $(TESTS:%.c=$(B)/%)
SCRIPTS  := $(wildcard $(foreach d,tests tests/bench tests/cxx tests/devices tests/python tests/infer tests/security tests/remote tests/page tests/gpu tests/package tests/tools,$d/*_test.sh $d/*_test.py))

.PHONY: tests all-tests test check check-fast check-asan check-asan-fast check-tsan lint format fuzz
$(TESTBIN:%=%.o): | needs-test
$(filter-out $(CUDA_TESTBIN),$(TESTBIN)): $(B)/%: $(B)/%.o $(B)/libhth.a | $(DNNL)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(FIND) -o $@ $^ $(LDLIBS) -lcmocka
tests: all-tests ## builds all tests, runs none
all-tests: all docs $(TESTBIN) $(B)/docs/embed $(FAKE_PLUGIN) $(B)/tests/bench/kmeans_bench
	@:

# More at a time than there are processors, for most tests wait most of the time; under a sanitizer they compute more.
# Those that take longest come first, so that none of them is left to run alone.
TEST_JOBS ?= $(shell expr $$(nproc) + $(if $(SAN),1,2))
LONG     := $(addprefix %/,soak_test.py gpu_check_test.sh page_test.py python_test.py security_test.py bodies_test.py \
            onednn_test.sh child_test cli_test router_test train_test proxy_test cuda_engine_test plan_policy_test \
            plan_train_test train_eval_test plan_curve_test drain_test router_group_test router_kmeans_test plan_check_test.py \
            follow_test.py cxx_test.py datasets_test.py damage_test.py kill_test.py ranks_test.py demo_test.py spill_test.sh \
            shortage_test tenant_test cuda_graph_test random_test train_fair_test train_grow_test checkpoint_test replan_test \
            spark_test.py predict_test.py shares_test.py trainer_plans_test router_group_more_test matrix_test.py plan_oracle_test)
first     = $(filter $(LONG),$(1)) $(filter-out $(LONG),$(1))
RUN_TESTS = $(Q)rm -rf $(B)/test-times $(B)/test-links; HEARTH_BUILD=$(B) CC='$(CC)' CUDA_HOME='$(CUDA_HOME)' CMOCKA_MESSAGE_OUTPUT=TAP prove $(if $(V),-v) \
            --timer --directives -j $(TEST_JOBS) -e 'sh build-aux/tap.sh'
# What check-fast leaves out, by measured time (tests/README.md).
SLOW     := $(B)/client/data/data_test $(B)/client/exchange_test $(B)/convsel/bench_pairs_test $(B)/device/cuda/cuda_test \
            $(B)/engine/engine_test \
            $(B)/engine/process/proxy_test $(B)/engine/router/router_test $(B)/engine/router/router_group_test \
            $(patsubst %,$(B)/engine/serve/%_test,memory_wait train_overlap_job load serve instance instances batcher_load) \
            $(patsubst %,$(B)/engine/train/%_test,checkpoint/checkpoint train_bad train_eval train_group train_keep train replan trainer_plans trainer_resize) \
            $(patsubst %,$(B)/engine/train/queue/%_test,train_fair train_commands train_grow train_record) \
            $(patsubst %,$(B)/graph/onnx/%_test,onnx_bad onnx_parts onnx) $(B)/graph/specialize_models_test \
            $(B)/kernels/cpu/conv_test \
            $(patsubst %,$(B)/kernels/cpu/train/%_test,conv_grad conv_norm) $(patsubst %,$(B)/kernels/cuda/%_test,dnn train_ops) \
            $(patsubst %,$(B)/modelstore/%_test,damage put upload) $(B)/planner/bound/plan_bound_test \
            $(patsubst %,$(B)/planner/exact/plan_%_test,floor oracle) \
            $(patsubst %,$(B)/planner/%_test,plan_curve plan_inference plan_least plan_limit plan_policy plan_train) \
            $(B)/runtime/job_memory_test $(B)/runtime/tenants/tenant_test $(B)/server/rpc/rings_test \
            $(patsubst %,$(B)/tests/%_test,child cli drain shortage tenant train) \
            $(B)/tests/independence/random_test $(patsubst %,$(B)/tests/cuda/%_test,cuda_devices cuda_engine cuda_graph cuda_tune) \
            $(patsubst %,tests/%_test.py,alias clients cxx/cxx damage datasets demo disk_full export follow infer/pictures job_owner devices/augment \
            devices/cpu_options joined metrics tools/plan_check outputs page/page page/acts page/looks read_only readme rpc soak shares terminal train_log versions bench/kmeans_estimator \
            $(addprefix python/,fork preload python torch) \
            $(addprefix remote/,cluster content http kill network owner predict spark) \
            $(addprefix security/,bodies certificate confined files hostile_model security)) \
            $(patsubst %,tests/%_test.sh,gpu/gpu_check onednn ops resume spill)
check: deps-test ## all tests (TAP), TEST_JOBS=nproc+2 at a time
	$(Q)$(MAKE) --no-print-directory all-tests
	$(RUN_TESTS) $(call first,$(SCRIPTS) $(TESTBIN))
check-fast: deps-test ## those that take less than a minute together once all is built (tests/README.md)
	$(foreach t,$(filter-out $(SCRIPTS) $(TESTBIN),$(SLOW)),$(error SLOW in mk/test.mk names $(t), which is no test))
	$(Q)$(MAKE) --no-print-directory all-tests
	$(RUN_TESTS) $(filter-out $(SLOW),$(SCRIPTS) $(TESTBIN))
test: deps-test ## the programs among the tests, and TEST_SCRIPTS=
	$(Q)$(MAKE) --no-print-directory all-tests
	$(RUN_TESTS) $(call first,$(TEST_SCRIPTS) $(TESTBIN))

# The sanitizers have a build folder each. -w: what they add to the code makes gcc guess wrongly; the plain build
# has -Werror.
CHECKS   := -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=undefined,float-cast-overflow
ASAN     := -w $(CHECKS) -fno-omit-frame-pointer -g1
LLD       = $(if $(shell command -v ld.lld),-fuse-ld=lld)
# The sanitizers crash on what threads keep in libraries that were opened at run time: they are not to look there
# (intercept_tls_get_addr). +: make sees no $(MAKE) through the variable, and would compile one file at a time.
ASAN_MAKE = +$(Q)ASAN_OPTIONS=detect_leaks=1:intercept_tls_get_addr=0 LSAN_OPTIONS=suppressions=build-aux/lsan.supp \
	    $(MAKE) --no-print-directory test B=build-asan OPT=-O1 KERNEL_OPT=-O2 SAN='$(ASAN) $(LLD)' DEFS=-DHTH_DEBUG NVCC=
# More than 12 processor seconds each, and nine tenths of all. What reads foreign bytes stays.
ASAN_LONG := $(patsubst %,convsel/%_test.c,bench_pairs link) engine/engine_test.c engine/process/proxy_test.c \
            engine/query/query_plan_test.c \
            $(patsubst %,engine/router/%_test.c,router_gang router_group_more router_group router_kmeans router_lost router) \
            $(patsubst %,engine/serve/%_test.c,instance instances load memory_wait serve) \
            $(patsubst %,engine/train/%_test.c,replan train_bad train_eval train_rest train trainer_plans trainer_resize) \
            engine/train/checkpoint/checkpoint_test.c \
            $(patsubst %,engine/train/queue/%_test.c,train_commands train_fair train_grow train_record) \
            group/group_test.c $(patsubst %,kernels/%_test.c,cpu/conv cpu/train/conv_grad cuda/dnn) \
            $(patsubst %,planner/plan_%_test.c,curve limit policy refine train) planner/bound/plan_bound_test.c \
            $(patsubst %,planner/exact/plan_%_test.c,floor oracle) runtime/job_memory_test.c \
            runtime/tenants/tenant_test.c $(patsubst %,tests/%_test.c,child cli drain shortage) \
            $(patsubst %,tests/cuda/cuda_%_test.c,engine graph)
check-asan: ## test under the address and undefined-behaviour sanitizers
	$(ASAN_MAKE)
check-asan-fast: ## those that take a tenth of its time together: CI runs them
	$(foreach t,$(filter-out $(TESTS),$(ASAN_LONG)),$(error ASAN_LONG in mk/test.mk names $(t), which is no test))
	$(ASAN_MAKE) TESTS='$(filter-out $(ASAN_LONG),$(TESTS))'
# Under the thread sanitizer: what has threads. Planner, graph and kernels compute on the thread that calls them,
# and the kernels are not instrumented; openmp_test and the tests of the server run them with several threads. Of
# CUDA's, those with an engine, over the fake driver; of the scripts, those in which many clients are at a
# hearthd. Reports are read after the tests: a process that a test starts has its own, and is often killed.
TSAN_NOT := graph/% planner/% kernels/% tests/cuda/% tests/independence/% tests/%_values_test.c tests/winograd_% tests/specialize_%
TSAN_TESTS := $(filter-out $(TSAN_NOT),$(TESTS)) kernels/dnnl/openmp_test.c \
            $(patsubst %,tests/cuda/cuda_%_test.c,devices engine metrics tenant)
TSAN_SCRIPTS := $(patsubst %,tests/%_test.py,clients metrics remote/http security/bodies security/security)
TSAN_BUILD = B=build-tsan OPT=-O1 KERNEL_OPT=-O1 SAN='-w -fsanitize=thread' DEFS=-DHTH_DEBUG NVCC=
check-tsan: export HEARTH_TEST_SECONDS = 1800
check-tsan: export TSAN_OPTIONS = suppressions=$(CURDIR)/build-aux/tsan.supp log_path=$(CURDIR)/build-tsan/report intercept_tls_get_addr=0
check-tsan: ## those that have threads under the thread sanitizer
	$(Q)rm -f build-tsan/report.*
	$(Q)rc=0; \
	$(MAKE) --no-print-directory test $(TSAN_BUILD) TESTS='$(TSAN_TESTS)' TEST_SCRIPTS='$(TSAN_SCRIPTS)' || rc=1; \
	for f in build-tsan/report.*; do [ ! -e "$$f" ] || { cat "$$f"; rc=1; }; done; exit $$rc
# Not instrumented for threads: loops that would take minutes, of kernels, of what measures them, which walks
# the caches before each run, and of the planner. What orders their threads, device/cpu/team.c, is, and so is
# what a search has in common with who waits for it.
build-tsan/kernels/%.o build-tsan/planner/%.o: override SAN = -w
build-tsan/planner/plan_refine.o build-tsan/planner/plan_work.o: override SAN = -w -fsanitize=thread
build-tsan/convsel/bench_%.o build-tsan/convsel/link.o: override SAN = -w

lint: deps-lint ## layers, headers, exports, format, manual pages, types, cppcheck
	$(Q)$(MAKE) --no-print-directory all docs
	$(Q)CUDA_HOME='$(CUDA_HOME)' sh build-aux/lint.sh $(B)
format: deps-lint ## formats the C files as lint wants them
	$(Q)git ls-files '*.c' '*.h' | xargs clang-format -i

# libFuzzer targets, as many at a time as make has jobs; each runs FUZZ_SECONDS, or FUZZ_RUNS executions where
# that is less, from the seeds in tests/data/fuzz, an archive each. All together must come to FUZZ_LEAST executions.
FUZZ_SECONDS ?= 600
FUZZ_RUNS ?= -1
FUZZ_LEAST ?= 0
FUZZ_SEED ?= 0
FUZZERS  := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/*_fuzz.c))
SEEDS    := $(patsubst tests/data/fuzz/%.tar,build-fuzz/seeds/%,$(wildcard tests/data/fuzz/*.tar))
FUZZ_OPTIONS = -seed=$(FUZZ_SEED) -max_total_time=$(FUZZ_SECONDS) -runs=$(FUZZ_RUNS) -rss_limit_mb=4096 -timeout=20 -print_final_stats=1
# What no fuzzer calls is not compiled for them: a quarter. One that comes to call it fails to link.
FUZZ_NOT := $(addprefix $(B)/,$(addsuffix /%,client/cli client/jobs $(patsubst %,engine/%,local process query router train) group server/daemon))
fuzz: deps-lint ## fuzzers of models, requests, rings, bodies, JSON; FUZZ_SECONDS=600 each, FUZZ_SEED=
	$(Q)$(MAKE) --no-print-directory build-fuzz/libhth.a B=build-fuzz CC=clang OPT=-O1 KERNEL_OPT=-O1 \
	    OBJ='$(patsubst $(B)/%,build-fuzz/%,$(filter-out $(FUZZ_NOT),$(OBJ)))' SAN='-fsanitize=fuzzer-no-link $(CHECKS)'
	$(Q)$(MAKE) --no-print-directory $(FUZZERS:%=run-%)
	$(Q)cat $(FUZZERS:%=build-fuzz/%.log) | awk '/^stat::number_of_executed_units/ { n += $$2 } \
	    END { printf "executions of all: %d, at least %d needed\n", n, $(FUZZ_LEAST); exit n < $(FUZZ_LEAST) }'
run-%_fuzz: $(SEEDS)
	$(Q)clang -std=c11 -O1 -g -D_GNU_SOURCE -I. -Ibuild-fuzz/gen -fsanitize=fuzzer $(CHECKS) -pthread \
	    $(LLD) -o build-fuzz/$*_fuzz tests/fuzz/$*_fuzz.c build-fuzz/libhth.a $(LDLIBS)
	@mkdir -p build-fuzz/corpus-$*_fuzz
	$(call say,FUZZ,'$*_fuzz ($(FUZZ_SECONDS) s)')
	$(Q)build-fuzz/$*_fuzz $(FUZZ_OPTIONS) build-fuzz/corpus-$*_fuzz $(filter %/$*_fuzz,$(SEEDS)) tests/data/onnx \
	    >build-fuzz/$*_fuzz.log 2>&1 || { tail -40 build-fuzz/$*_fuzz.log; exit 1; }
	$(Q)sed -n -E 's/^stat::(number_of_executed_units|peak_rss_mb): */$*_fuzz: \1 /p' build-fuzz/$*_fuzz.log
$(SEEDS): build-fuzz/seeds/%: tests/data/fuzz/%.tar
	$(Q)rm -rf $@ && mkdir -p $@ && tar xmf $< -C $@
# Of the kernels only the reference guides fuzzers, who would count millions of branches otherwise; all are checked.
build-fuzz/kernels/cpu/%.o: override SAN = $(CHECKS)
