# SPDX-License-Identifier: Apache-2.0
# hearth: make, make deps, make check, make demo. V=1 shows the commands; CC=clang, B=build-clang build elsewhere.
B       ?= build
CC      ?= cc
OPT     ?= -O2
SAN     ?=
DEFS    ?=
PKGS    := libprotobuf-c jansson lmdb libcrypto
Q       := $(if $(V),,@)
CFLAGS  := -std=c11 $(OPT) -g -Wall -Wextra -Werror -Wno-unused-parameter -Wmissing-prototypes -Wvla -fPIC -fvisibility=hidden -pthread $(SAN)
CPPFLAGS := -D_GNU_SOURCE -I. -I$(B)/gen $(DEFS)
LDLIBS  := -ldnnl -lnng -lgomp $(shell pkg-config --libs $(PKGS) 2>/dev/null) -levent -levent_pthreads -lz -lm
LAYERS  := base graph device modelstore kernels convsel memmgr client server

PROTOS  := $(wildcard graph/*.proto client/*.proto)
GEN_C   := $(PROTOS:%.proto=$(B)/gen/%.pb-c.c)
SRC     := $(filter-out %_test.c %_main.c,$(wildcard $(LAYERS:%=%/*.c) device/*/*.c kernels/*/*.c))
MAINS   := $(wildcard client/*_main.c server/*_main.c)
TESTS   := $(wildcard $(LAYERS:%=%/*_test.c) device/*/*_test.c kernels/*/*_test.c tests/*_test.c)
OBJ     := $(SRC:%.c=$(B)/%.o) $(GEN_C:%.c=%.o)
PROGS   := $(MAINS:%_main.c=%_main)
TESTBIN := $(TESTS:%.c=$(B)/%)

.PHONY: all deps check test clean
all: $(B)/libhth.a $(if $(wildcard client/hearth_main.c),$(B)/hearth) $(if $(wildcard server/hearthd_main.c),$(B)/hearthd)

# Kernels are loops for the vectoriser; their files ask for it.
$(B)/kernels/%.o: OPT := -O3 -fno-math-errno -fno-trapping-math

$(B)/gen/%.pb-c.c: %.proto
	@mkdir -p $(@D)
	$(Q)protoc-c --proto_path=. --c_out=$(B)/gen $<
$(B)/gen/%.o: $(B)/gen/%.c
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -Wno-missing-prototypes -MMD -MP -c -o $@ $<
$(B)/%.o: %.c | $(GEN_C)
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<
$(B)/libhth.a: $(OBJ)
	@echo "  AR    $@"
	$(Q)rm -f $@ && ar rcs $@ $(OBJ)
$(B)/hearth: $(B)/client/hearth_main.o $(B)/libhth.a
	@echo "  LD    $@"
	$(Q)$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)
$(B)/hearthd: $(B)/server/hearthd_main.o $(B)/libhth.a
	@echo "  LD    $@"
	$(Q)$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)
$(B)/%_test: $(B)/%_test.o $(B)/libhth.a
	@echo "  LD    $@"
	$(Q)$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

tests: $(TESTBIN)
test: $(TESTBIN)
	CMOCKA_MESSAGE_OUTPUT=TAP prove $(if $(V),-v) -e '' $(TESTBIN)
clean:
	rm -rf $(B)
-include $(shell find $(B) -name '*.d' 2>/dev/null)
