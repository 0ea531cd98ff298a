# SPDX-License-Identifier: Apache-2.0
# The CUDA plug-in needs the headers of CUDA 13 and cuDNN 9 and nvcc for its kernels, no library. Without the
# headers its tests are skipped, too; without nvcc they run: they compile the kernels for the host.
CUDA_HOME ?= /usr/local/cuda
CUDA_NEEDS := $(addprefix $(CUDA_HOME)/include/,cuda.h cudnn.h cublasLt.h)
CUDA_INC := $(if $(filter 3,$(words $(wildcard $(CUDA_NEEDS)))),yes)
NVCC     := $(wildcard $(CUDA_HOME)/bin/nvcc)
# What GPUs the kernels are made for: Hopper as machine code, others from Ampere on by the driver's compiler.
CUDA_ARCH ?= -gencode arch=compute_90,code=sm_90 -gencode arch=compute_80,code=compute_80
CUDA_CU  := $(wildcard kernels/cuda/*.cu)
CUDA_FATBIN := $(CUDA_CU:%.cu=$(B)/%.fatbin)
CUDA_OBJ := $(patsubst %.c,$(B)/%.o,$(filter-out %_test.c %/entry.c,$(wildcard device/cuda/*.c kernels/cuda/*.c)))
CUDA_ENTRY := $(B)/kernels/cuda/entry.o $(B)/kernels/cuda/images.o $(patsubst %,$(B)/graph/%.o,attr attention tensor op)
CUDA_FAKE := $(patsubst %.c,$(B)/%.o,$(wildcard device/cuda/fake/*.c kernels/cuda/fake/*.c)) \
            $(CUDA_CU:%.cu=$(B)/%.host.o)
PLUGIN   := $(if $(CUDA_INC),$(if $(NVCC),$(B)/libhearth_cuda.so))
FAKE_PLUGIN := $(if $(CUDA_INC),$(B)/fake/libhearth_cuda.so)
CUDA_TESTBIN := $(patsubst %.c,$(B)/%,$(wildcard device/cuda/*_test.c kernels/cuda/*_test.c tests/cuda/*_test.c))

all: $(PLUGIN)
$(B)/device/cuda/%.o $(B)/kernels/cuda/%.o $(B)/tests/cuda/%.o: CPPFLAGS += -isystem $(CUDA_HOME)/include
# Kernels are compiled twice: for GPUs, and for the host, where the fake driver of the tests calls them.
# Optimizers' steps have nothing contracted, as kernels/cpu/train/train_step.c.
FMAD = true
$(B)/kernels/cuda/step.fatbin: FMAD = false
$(B)/kernels/cuda/%.fatbin: kernels/cuda/%.cu
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) -std=c++17 -I. --fmad=$(FMAD) -O3 -fatbin $(CUDA_ARCH) -MD -MF $(@:.fatbin=.fatbin.d) -MT $@ -o $@ $<
$(B)/kernels/cuda/%.host.o: kernels/cuda/%.cu
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -Wno-unused-function -MMD -MP -x c -c -o $@ $<
$(B)/kernels/cuda/images.S: build-aux/images.sh $(CUDA_FATBIN)
	@mkdir -p $(@D)
	$(Q)sh $< $(@D) $(notdir $(CUDA_CU:.cu=)) >$@
$(B)/kernels/cuda/images.o: $(B)/kernels/cuda/images.S
	$(Q)$(CC) -c -o $@ $<
$(B)/libhearth_cuda.so: $(CUDA_OBJ) $(CUDA_ENTRY)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libhearth_cuda.so -Wl,-z,defs -o $@ $^ -lm
ifeq ($(CUDA_INC),)
$(CUDA_TESTBIN): $(B)/%:
	@mkdir -p $(@D)
	@echo '#!/bin/sh' >$@ && chmod +x $@
	@echo 'echo "1..0 # SKIP no headers of CUDA 13 and cuDNN 9 in $(CUDA_HOME)/include"' >>$@
else
$(CUDA_TESTBIN): $(B)/%: $(B)/%.o $(CUDA_OBJ) $(CUDA_FAKE) $(B)/libhth.a | $(DNNL)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(FIND) -o $@ $^ $(LDLIBS) -lcmocka
endif
# The fake driver as a plug-in file: what gpu-check runs is itself run by tests/gpu/gpu_check_test.sh.
$(B)/fake/libhearth_cuda.so: $(CUDA_OBJ) $(CUDA_FAKE) $(B)/libhth.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) -shared -Wl,-Bsymbolic -o $@ $^ $(LDLIBS)

# On a machine with a GPU; the head of tests/gpu/gpu_check.sh names what can be set.
CUDA_CHECKS := $(patsubst %,kernels/cuda/%_test,attention attention_parts elementwise norm gemm train_ops train_rare \
            rare) tests/cuda/cuda_probe_test tests/cuda/cuda_speed_test
.PHONY: gpu-check
gpu-check: all ## on a machine with an NVIDIA GPU: operators, models and training on it, as a table
	$(Q)$(MAKE) --no-print-directory $(CUDA_CHECKS:%=$(B)/%)
	$(Q)sh tests/gpu/gpu_check.sh $(B) $(B)/gpu-check '$(CUDA_HOME)'
