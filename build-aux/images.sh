#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes the assembler file that puts the compiled kernels (fat binaries) into the CUDA plug-in: their bytes, and a table of
# their names and addresses, hth_cuda_images, hth_cuda_n_images (kernels/cuda/cuda.h). usage: images.sh FOLDER NAME..
set -eu
folder=$1
shift
cat <<'END'
.section .note.GNU-stack,"",%progbits
.section .rodata
END
for name in "$@"; do
    cat <<END
.balign 64
.globl hth_image_$name
.hidden hth_image_$name
hth_image_$name: .incbin "$folder/$name.fatbin"
.byte 0
END
done
cat <<'END'
.section .data.rel.ro,"aw"
.balign 8
.globl hth_cuda_images
.hidden hth_cuda_images
hth_cuda_images:
END
for name in "$@"; do
    echo ".quad name_$name, hth_image_$name"
done
echo '.section .rodata'
for name in "$@"; do
    echo "name_$name: .asciz \"$name\""
done
cat <<END
.balign 4
.globl hth_cuda_n_images
.hidden hth_cuda_n_images
hth_cuda_n_images: .long $#
END
