# SPDX-License-Identifier: Apache-2.0
# Sums over the ranks of mpirun: a plug-in by the MPI that mpicc compiles for, Open MPI or MPICH. Without mpicc
# there is none, and its tests are skipped.
MPICC    ?= $(shell command -v mpicc)
MPI      := $(if $(MPICC),$(B)/libhearth_mpi.so)
all: $(MPI)
$(B)/libhearth_mpi.so: client/cli/mpi/mpi_plugin.c client/cli/mpi/mpi_plugin.h client/hearth.h
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)OMPI_CC='$(CC)' MPICH_CC='$(CC)' $(MPICC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -shared \
	    -Wl,-soname,libhearth_mpi.so -o $@ $<
