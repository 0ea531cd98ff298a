# SPDX-License-Identifier: Apache-2.0
# What a machine with a GPU needs for gpu-check without Debian's packages: programs with their libraries inside or
# next to them, without what only debuggers read. The archive is what is carried there.
BUNDLE   := $(B)/bundle
STATIC_LIBS = -Wl,-Bstatic -lnng -lmbedtls -lmbedx509 -lmbedcrypto -lprotobuf-c -ljansson -llmdb \
            -levent -levent_pthreads -lssl -lcrypto -lpng16 -ljpeg -lz -lseccomp -Wl,-Bdynamic -lm -Wl,--disable-new-dtags -s
BUNDLE_MAINS = hearth:client/cli/hearth_main.o hearthd:server/daemon/hearthd_main.o
BUNDLE_RPATH = -Wl,-rpath,'$$ORIGIN/lib'
BUNDLE_DNNL = $(if $(BUNDLE_CPU),$(BUNDLE)/build/libhearth_dnnl.so)
BUNDLE_PY = $(patsubst %,tests/%.py,gpu/gpu_compare gpu/gpu_torch gpu/gpu_pagein bench/train_policies \
            bench/policy_nets onnx_small tools/record_problems tools/make_models)
BUNDLE_FOLDERS = $(addprefix $(BUNDLE)/,build/kernels/cuda build/tests/cuda build/lib \
            tests/data tests/bench tests/gpu tests/tools)

.PHONY: bundle
bundle: all ## what a machine with a GPU needs for gpu-check, as an archive; BUNDLE_CPU=1: with oneDNN
	$(if $(PLUGIN),,$(error bundle: no plug-in, for $(CUDA_HOME) lacks nvcc or the headers of CUDA 13 and cuDNN 9))
	$(Q)$(MAKE) --no-print-directory $(CUDA_CHECKS:%=$(B)/%)
	$(Q)rm -rf $(BUNDLE) && mkdir -p $(BUNDLE_FOLDERS)
	$(Q)for p in $(BUNDLE_MAINS); do \
	    $(CC) $(CFLAGS) $(LDFLAGS) -pie -o $(BUNDLE)/build/$${p%%:*} $(B)/$${p##*:} $(B)/libhth.a $(STATIC_LIBS) \
	        $(BUNDLE_RPATH) || exit 1; \
	done
	$(Q)for t in $(CUDA_CHECKS); do \
	    $(CC) $(CFLAGS) -o $(BUNDLE)/build/$$t $(B)/$$t.o $(CUDA_OBJ) $(CUDA_FAKE) $(B)/libhth.a $(STATIC_LIBS) \
	        -lcmocka -Wl,-rpath,'$$ORIGIN/../lib:$$ORIGIN/../../lib' $(FIND) || exit 1; \
	done
	$(Q)cp $(PLUGIN) $(BUNDLE)/build/
	$(Q)[ -z "$(BUNDLE_CPU)" ] || $(CC) $(CFLAGS) -shared -Wl,-soname,libhearth_dnnl.so -s -o $(BUNDLE_DNNL) \
	    $(DNNL_OBJ) -ldnnl -Wl,--disable-new-dtags $(BUNDLE_RPATH)
	$(Q)ldd $(BUNDLE)/build/hearth $(BUNDLE)/build/kernels/cuda/norm_test $(BUNDLE_DNNL) | \
	    awk '$$3 ~ "^/" {print $$3}' | sort -u | \
	    grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*)\.so' | xargs -I{} cp -L {} $(BUNDLE)/build/lib/
	$(Q)cp -r tests/data/digits tests/data/devices $(BUNDLE)/tests/data/
	$(Q)for f in tests/gpu/gpu_check.sh $(BUNDLE_PY); do cp $$f $(BUNDLE)/$$f || exit 1; done
	$(Q)cp build-aux/bundle-check.sh $(BUNDLE)/check
	$(Q)tar czf $(BUNDLE).tar.gz -C $(B) bundle
	$(Q)du -sh $(BUNDLE) $(BUNDLE).tar.gz
