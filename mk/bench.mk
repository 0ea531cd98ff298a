# SPDX-License-Identifier: Apache-2.0
# What takes measurements.
BENCHBIN := $(patsubst %.c,$(B)/%,$(wildcard tests/bench/*.c))

.PHONY: bench bench-fair bench-jobs bench-plan-gb bench-table bench-train bench-kmeans bench-group bench-policies bench-prediction bench-winograd conformance
$(BENCHBIN): $(B)/%: $(B)/%.o $(B)/libhth.a | $(DNNL)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(FIND) -o $@ $^ $(LDLIBS)

bench: all ## a local socket against a bare one, serving, the planner on networks (VGG19=FILE.onnx: spilling)
	$(Q)$(MAKE) --no-print-directory $(BENCHBIN)
	$(Q)for b in $(BENCHBIN); do echo "== $$b"; $$b || exit 1; done
	$(Q)[ -z "$(VGG19)" ] || sh tests/spill_test.sh $(B) "$(VGG19)" x 3,224,224 32 50 $(B)/bench-store
bench-group: all ## one job on two CPU devices against the sum of both alone, K-means too, and DDP over gloo
	$(Q)python3 tests/bench/group.py --build $(B) digits resnet50
	$(Q)python3 tests/bench/kmeans_group.py --build $(B)
bench-fair: $(B)/tests/bench/fair_bench ## shares of a simulated cluster: cost of a decision, waits, share error, completion
	$(Q)$(B)/tests/bench/fair_bench
bench-jobs: all ## a device shared by tenants' training jobs: weights, first step, elastic budgets
	$(Q)python3 tests/bench/fair_jobs.py --build $(B)
# GB of memory; and GB/s, which are to the recorded costs (93.7 s for VGG19's step) what PCIe 3 is to a Tesla P40 (train_policies.py).
PLAN_GB   := 19.2,16.8,14.4,12,9.6
PLAN_LINK := 0.163
bench-plan-gb: $(B)/tests/bench/plan_bench ## the planner in 0.8 to 0.4 of a card of 24 GB: VGG19 and UNet at their published batches
	$(Q)for name in 'VGG19, batch 144' 'UNet, batch 120'; do $< --gb $(PLAN_GB) --generated --only "$$name" || exit 1; done
	$(Q)$< --gb $(PLAN_GB) --link $(PLAN_LINK) tests/data/plan/vgg19-144.json.gz tests/data/plan/unet-120.json.gz
bench-table: all ## serving against onnxruntime and OpenVINO (PyPI)
	$(Q)python3 tests/bench/table.py $(B)/hearth
bench-train: all ## training steps against PyTorch, without a limit and at the peak it has with checkpoints (PyPI)
	$(Q)python3 tests/bench/train_table.py $(B)/hearth
bench-kmeans: $(B)/tests/bench/kmeans_bench ## K-means against scikit-learn, scikit-learn-intelex and faiss (PyPI)
	$(Q)python3 tests/bench/kmeans.py $(B)
bench-policies: all ## training steps under every policy and budget, measured (35 minutes; PyPI exports the networks)
	$(Q)python3 tests/bench/train_policies.py $(B)/hearth
bench-prediction: all ## predicted training steps against measured ones, over a set link and without (PyPI exports the networks)
	$(Q)python3 tests/bench/prediction.py $(B)/hearth
bench-winograd: all ## 3x3 convolutions of well-known networks against oneDNN (10 minutes)
	$(Q)$(MAKE) --no-print-directory $(BENCHBIN)
	$(Q)sh tests/bench/winograd.sh $(B)
conformance: all ## the onnx package's backend node tests (PyPI) through the client, as a table
	$(Q)sh tests/tools/conformance.sh $(B)
