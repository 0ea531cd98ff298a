# SPDX-License-Identifier: Apache-2.0
# What is built and installed; `make help` lists all goals. V=1 shows the commands; CC=clang B=build-clang builds
# elsewhere with another compiler. The other goals are in mk/: deps (packages), cuda (the plug-in), test, bench,
# bundle, wheel, packages (Debian's, and an image).
B        ?= build
CC       ?= cc
OPT      ?= -O2
SAN      ?=
ISA       =
DEFS     ?=
PREFIX   ?= /usr/local
Q        := $(if $(V),,@)
# All cores, unless make was started with -j or by another make.
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc)
endif
comma    := ,
say       = @$(if $(V),true,printf '  %-7s %s\n' $(1) $(2))

# What Debian builds its own packages with (dpkg-buildflags, hardening=+all). Sanitizers have checks of their own.
HARDEN   := $(if $(SAN),,-fstack-protector-strong -fstack-clash-protection -D_FORTIFY_SOURCE=3 -Wformat \
            -Wformat-security $(if $(filter x86_64,$(shell uname -m)),-fcf-protection))
LDFLAGS  ?= $(if $(SAN),,-Wl,-z,relro,-z,now,-z,noexecstack)
CFLAGS    = -std=c11 $(OPT) $(HARDEN) -g -Wall -Wextra -Werror -Wno-unused-parameter -Wmissing-prototypes -Wvla -fPIC \
            -fvisibility=hidden -pthread $(ISA) $(SAN)
CPPFLAGS  = -D_GNU_SOURCE -I. -I$(B)/gen $(DEFS)
LDLIBS    = -lnng -lprotobuf-c -ljansson -llmdb -lcrypto -levent -levent_pthreads -lssl -lz \
            -lseccomp -lpng -ljpeg -lm
# The rooms of the house, from the lowest to the highest (build-aux/layers.sh).
LAYERS   := base base/ipc base/text sched fair group graph $(addprefix graph/,onnx passes autodiff) device modelstore kernels convsel \
            planner planner/bound planner/exact planner/search memmgr runtime $(addprefix runtime/,compile tenants content) \
            engine $(addprefix engine/,local serve train query process router) $(addprefix engine/train/,checkpoint data kmeans queue) \
            client $(addprefix client/,data content infer jobs cli cli/top cli/infer cli/commands) \
            server $(addprefix server/,net rpc http http/tensors http/repository http/trace http/dashboard http/remote daemon)
CODE     := $(LAYERS) device/cpu device/fake kernels/ref kernels/cpu $(addprefix kernels/cpu/,kmeans winograd train)

# What calls oneDNN is a plug-in: it alone is linked with libdnnl. Test programs and benches look for it in the
# build folder, by RPATH: under the address sanitizer dlopen is called from the sanitizer's library, for which a
# program's RUNPATH does not count.
DNNL_OBJ := $(patsubst %.c,$(B)/%.o,$(filter-out %_test.c,$(wildcard kernels/dnnl/*.c)))
DNNL     := $(B)/libhearth_dnnl.so
FIND     := -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/..:$$ORIGIN/../..:$$ORIGIN/../../..'

PROTOS   := $(wildcard graph/onnx/*.proto client/*.proto)
GEN_C    := $(PROTOS:%.proto=$(B)/gen/%.pb-c.c)
SRC      := $(filter-out %_test.c %_main.c,$(wildcard $(CODE:%=%/*.c)))
OBJ      := $(SRC:%.c=$(B)/%.o) $(GEN_C:%.c=%.o)

.PHONY: all help docs demo install uninstall clean
all: $(B)/hearth $(B)/hearthd $(B)/libhearth.so $(DNNL) ## what is installed, in build/ (B=); plain make does this
include mk/deps.mk mk/cuda.mk mk/mpi.mk mk/test.mk mk/bench.mk mk/bundle.mk mk/wheel.mk mk/packages.mk
MK       := $(MAKEFILE_LIST)

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MK) | expand -t 24
demo: deps ## imports models, serves them, classifies digits, shows the memory, trains one, leaves a page to look at
	$(Q)$(MAKE) --no-print-directory all
	$(Q)sh tests/demo.sh $(B)

# Kernels are loops for the vectoriser; their files ask for it.
VECTOR_WIDTH := $(if $(filter x86_64,$(shell uname -m)),-mprefer-vector-width=512)
KERNEL_OPT ?= -O3
KERNEL_C  = $(KERNEL_OPT) -fno-math-errno -fno-trapping-math -ffp-contract=$(CONTRACT) -Wno-psabi $(VECTOR_WIDTH)
$(B)/kernels/%.o: override OPT = $(KERNEL_C)
# Optimizers' steps are the same to the bit with every instruction set: members of a group each make their own.
CONTRACT  = fast
$(B)/kernels/cpu/train/train_step.o: CONTRACT = off
# Compiled once per instruction set; what runs is asked of the processor.
ifeq ($(shell uname -m),x86_64)
AVX512   := -mavx512f -mavx512vl -mavx512bw -mavx512dq
$(B)/kernels/cpu/%_avx512.o: ISA = $(AVX512) -mavx2 -mfma
$(B)/kernels/cpu/%_amx.o: ISA = $(AVX512) -mavx512bf16 -mamx-tile -mamx-bf16 -mavx2 -mfma
$(B)/kernels/cpu/%_avx2.o: ISA = -mavx2 -mfma -mprefer-vector-width=256
endif

# The page that hearthd serves: its files as arrays of bytes; the scripts, in this order, are one.
PAGE     := server/http/dashboard/page
PAGE_JS  := $(patsubst %,server/http/dashboard/%.js,dom figures asking charts histogram memory actions models tenants shares jobs main)
bytes     = { echo 'static const unsigned char page_$(1)[] = {' && cat $(2) | od -An -v -tx1 | \
            sed 's/\([0-9a-f][0-9a-f]\)/0x\1,/g' && echo '};'; }
$(B)/gen/page.inc: $(PAGE).html $(PAGE).css $(PAGE_JS)
	@mkdir -p $(@D)
	$(Q){ $(call bytes,html,$(PAGE).html) && $(call bytes,css,$(PAGE).css) && \
	    $(call bytes,js,$(PAGE_JS)); } >$@.new && mv $@.new $@
$(B)/server/http/dashboard/http_dashboard_page.o: $(B)/gen/page.inc
$(B)/gen/openapi.inc: docs/openapi.json
	@mkdir -p $(@D)
	$(Q){ $(call bytes,openapi,$<); } >$@.new && mv $@.new $@
$(B)/server/http/remote/openapi.o: $(B)/gen/openapi.inc

$(B)/gen/%.pb-c.c: %.proto
	@mkdir -p $(@D)
	$(Q)protoc-c --proto_path=. --c_out=$(B)/gen $< 2>$@.log || { cat $@.log; exit 1; }
$(B)/gen/%.o: $(B)/gen/%.c
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -Wno-missing-prototypes -MMD -MP -c -o $@ $<
$(B)/%.o: %.c | $(GEN_C) needs-build
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<
$(B)/libhth.a: $(OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $(OBJ)
# Where plug-ins are installed; by default that is where libhearth.so is, in which programs look by themselves. Another folder
# is named when they are linked.
PLUGINDIR ?=
LD_PLUGINS = $(if $(PLUGINDIR),-Wl$(comma)-rpath$(comma)$(PLUGINDIR))
$(B)/hearth: $(B)/client/cli/hearth_main.o $(B)/libhth.a
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(LD_PLUGINS) -pie -o $@ $^ $(LDLIBS)
$(B)/hearthd: $(B)/server/daemon/hearthd_main.o $(B)/libhth.a
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(LD_PLUGINS) -pie -o $@ $^ $(LDLIBS)
# Manual pages and completions: what the tables of commands and settings decide is printed by hearth-docs.
$(B)/hearth-docs: $(B)/client/cli/docs_main.o $(B)/libhth.a
	$(Q)$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)
PAGES    := hearth.1 hearthd.8 hearth.h.3
SHELLS   := bash/hearth bash/hearthd zsh/_hearth zsh/_hearthd
docs: $(PAGES:%=$(B)/man/%) $(SHELLS:%=$(B)/completions/%) ## manual pages and completions of shells
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
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(LD_PLUGINS) -shared -Wl,-soname,libhearth.so.0 -Wl,-z,defs \
	    -Wl,--version-script=client/libhearth.map -o $@ $(OBJ) $(LDLIBS)
$(B)/docs/embed: docs/embed.c $(B)/libhearth.so
	@mkdir -p $(@D)
	$(Q)ln -sf libhearth.so $(B)/libhearth.so.0
	$(Q)$(CC) $(CFLAGS) -Iclient -o $@ $< -L$(B) -lhearth -Wl,-rpath,'$$ORIGIN/..'

# What is installed, for uninstall too. DESTDIR stages it; paths in files are those under PREFIX.
VERSION  := $(shell sed -n 's/^.define HEARTH_VERSION *"\(.*\)"/\1/p' client/hearth.h)
LIBDIR   ?= $(PREFIX)/lib
UNITDIR  ?= $(PREFIX)/lib/systemd/system
MANDIR   ?= $(PREFIX)/share/man
DOCDIR   ?= $(PREFIX)/share/doc/hearth
BASHDIR  ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR   ?= $(PREFIX)/share/zsh/site-functions
CONFDIR  ?= $(if $(filter /usr,$(PREFIX)),,$(PREFIX))/etc/hearth
INSTALLED = $(PREFIX)/bin/hearth $(PREFIX)/sbin/hearthd $(PREFIX)/include/hearth.h $(PREFIX)/include/hearth.hpp \
            $(PREFIX)/lib/sysusers.d/hearth.conf \
            $(LIBDIR)/libhearth.so.0 $(LIBDIR)/libhearth.so $(LIBDIR)/pkgconfig/hearth.pc \
            $(patsubst %,$(or $(PLUGINDIR),$(LIBDIR))/libhearth_%.so,dnnl cuda mpi) \
            $(UNITDIR)/hearthd.service $(DOCDIR)/openapi.json $(MANDIR)/man1/hearth.1 $(MANDIR)/man8/hearthd.8 $(MANDIR)/man3/hearth.h.3 \
            $(patsubst zsh/%,$(ZSHDIR)/%,$(SHELLS:bash/%=$(BASHDIR)/%))
# A folder in which the loader does not look by itself: programs made through pkg-config are to find the library there.
RPATH     = $(if $(filter /usr/lib% /lib%,$(LIBDIR)),,-Wl$(comma)-rpath$(comma)$${libdir})
fill      = sed -e 's| *@RPATH@|$(if $(RPATH), $(RPATH))|' -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@LIBDIR@|$(LIBDIR)|g' -e 's|@VERSION@|$(VERSION)|g' \
            -e 's|@CONFDIR@|$(CONFDIR)|g'
install: all docs ## installs; PREFIX=/usr/local, DESTDIR= to stage
	install -D -m 755 $(B)/hearth $(DESTDIR)$(PREFIX)/bin/hearth
	install -D -m 755 $(B)/hearthd $(DESTDIR)$(PREFIX)/sbin/hearthd
	install -D -m 755 $(B)/libhearth.so $(DESTDIR)$(LIBDIR)/libhearth.so.0
	ln -sf libhearth.so.0 $(DESTDIR)$(LIBDIR)/libhearth.so
	install -D -m 755 -t $(DESTDIR)$(or $(PLUGINDIR),$(LIBDIR)) $(DNNL) $(PLUGIN) $(MPI)
	install -D -m 644 client/hearth.h $(DESTDIR)$(PREFIX)/include/hearth.h
	install -D -m 644 client/hearth.hpp $(DESTDIR)$(PREFIX)/include/hearth.hpp
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(UNITDIR)
	$(fill) client/hearth.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/hearth.pc
	$(fill) server/daemon/hearthd.service.in >$(DESTDIR)$(UNITDIR)/hearthd.service
	for p in $(PAGES); do install -d $(DESTDIR)$(MANDIR)/man$${p##*.} && \
	    $(fill) $(B)/man/$$p >$(DESTDIR)$(MANDIR)/man$${p##*.}/$$p || exit 1; done
	install -D -m 644 -t $(DESTDIR)$(BASHDIR) $(B)/completions/bash/hearth $(B)/completions/bash/hearthd
	install -D -m 644 -t $(DESTDIR)$(ZSHDIR) $(B)/completions/zsh/_hearth $(B)/completions/zsh/_hearthd
	install -D -m 644 docs/openapi.json $(DESTDIR)$(DOCDIR)/openapi.json
	install -D -m 644 server/daemon/hearth.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/hearth.conf
	$(if $(DESTDIR),,@[ "$$(id -u)" != 0 ] || ldconfig)
	[ -e $(DESTDIR)$(CONFDIR)/hearthd.conf ] || \
	    install -D -m 644 server/daemon/hearthd.conf $(DESTDIR)$(CONFDIR)/hearthd.conf
uninstall: ## removes what install put there; a configuration that was changed stays
	! cmp -s server/daemon/hearthd.conf $(DESTDIR)$(CONFDIR)/hearthd.conf || rm $(DESTDIR)$(CONFDIR)/hearthd.conf
	rm -f $(INSTALLED:%=$(DESTDIR)%)
	$(if $(DESTDIR),,@[ "$$(id -u)" != 0 ] || ldconfig)
clean: ## removes the build folders
	rm -rf build build-asan build-tsan build-fuzz build-clang

-include $(shell find $(B) -path $(B)/deb -prune -o -name '*.d' -print 2>/dev/null)
