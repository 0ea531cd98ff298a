#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/nn_cases.h: what PyTorch computes for the cases of kernels/ref/nn_test.c.

Inputs follow a formula that test and script share (fill), so only results are stored.
usage: make_nn_cases.py > tests/data/nn_cases.h
"""
import numpy as np
import torch
import torch.nn.functional as F


def fill(seed, *shape):
    i = np.arange(int(np.prod(shape)))
    v = ((i * 37 + seed * 101 + (i // 7) * 13) % 67 - 33) / 32.0
    return torch.tensor(v.astype(np.float32).reshape(shape)).double()


CASES = {}


def case(name, value):
    CASES[name] = np.asarray(value.detach().numpy(), np.float64).reshape(-1)


def recurrent(kind, gates, order):
    """A bidirectional layer over lengths 4, 2, 3; ONNX's gates are reordered to PyTorch's."""
    steps, batch, n_in, hid = 4, 3, 3, 2
    x, w, r = fill(1, steps, batch, n_in), fill(2, 2, gates * hid, n_in), fill(3, 2, gates * hid, hid)
    b, h0, c0 = fill(4, 2, 2 * gates * hid), fill(5, 2, batch, hid), fill(6, 2, batch, hid)
    layer = getattr(torch.nn, kind)(n_in, hid, bidirectional=True).double()
    turn = lambda t: torch.cat([t[g * hid:(g + 1) * hid] for g in order])
    with torch.no_grad():
        for d, suffix in enumerate(["", "_reverse"]):
            getattr(layer, "weight_ih_l0" + suffix).copy_(turn(w[d]))
            getattr(layer, "weight_hh_l0" + suffix).copy_(turn(r[d]))
            getattr(layer, "bias_ih_l0" + suffix).copy_(turn(b[d][:gates * hid]))
            getattr(layer, "bias_hh_l0" + suffix).copy_(turn(b[d][gates * hid:]))
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, [4, 2, 3], enforce_sorted=False)
    y, state = layer(packed, (h0, c0) if kind == "LSTM" else h0)
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=steps)
    case(kind.lower() + "_y", y.reshape(steps, batch, 2, hid).permute(0, 2, 1, 3))
    case(kind.lower() + "_h", state[0] if kind == "LSTM" else state)
    if kind == "LSTM":
        case("lstm_c", state[1])


case("conv3d", F.conv3d(fill(1, 2, 4, 5, 6, 7), fill(2, 6, 2, 2, 3, 2), fill(3, 6), stride=(1, 2, 2), padding=(1, 0, 2),
                        dilation=(2, 1, 3), groups=2))
case("conv_transpose2d", F.conv_transpose2d(fill(1, 2, 4, 3, 4), fill(2, 4, 3, 3, 2), fill(3, 6), stride=(2, 3),
                                            padding=(1, 0), output_padding=(1, 2), groups=2, dilation=(2, 1)))
y, where = F.max_pool3d(fill(1, 1, 2, 5, 6, 7), (2, 3, 2), (2, 1, 3), (1, 1, 0), (1, 2, 2), return_indices=True)
case("max_pool3d", y)
case("max_pool3d_indices", where + torch.tensor([0, 210]).reshape(1, 2, 1, 1, 1))
case("average_pool2d_ceil", F.avg_pool2d(fill(1, 1, 2, 6, 7), 3, 2, 1, ceil_mode=True, count_include_pad=True))
case("layer_norm", F.layer_norm(fill(1, 2, 3, 4), (3, 4), fill(2, 3, 4), fill(3, 3, 4)))
case("group_norm", F.group_norm(fill(1, 2, 6, 5), 3, fill(2, 6), fill(3, 6)))
mean, var = torch.zeros(3).double(), torch.ones(3).double()
case("batch_norm", F.batch_norm(fill(1, 2, 3, 4), mean, var, fill(2, 3), fill(3, 3), training=True, momentum=0.25))
case("batch_norm_mean", mean)
recurrent("LSTM", 4, [0, 2, 3, 1])
recurrent("GRU", 3, [1, 0, 2])
case("einsum_diagonal", torch.einsum("ii->i", fill(1, 4, 4)))
case("einsum_chain", torch.einsum("ab,bc,dc->da", fill(1, 2, 3), fill(2, 3, 4), fill(3, 5, 4)))
case("einsum_ellipsis", torch.einsum("...ij,...kj->k...i", fill(1, 2, 3, 4), fill(2, 1, 5, 4)))
case("einsum_implicit", torch.einsum("ibc,ibd", fill(1, 3, 2, 4), fill(2, 3, 2, 5)))
case("matmul_vector", torch.matmul(fill(1, 4), fill(2, 2, 3, 4, 5)))
case("matmul_batch", torch.matmul(fill(1, 2, 1, 3, 4), fill(2, 5, 4, 2)))
case("resize_antialias", F.interpolate(fill(1, 1, 2, 9, 8), (4, 5), mode="bilinear", antialias=True))
case("resize_trilinear", F.interpolate(fill(1, 1, 1, 3, 4, 3), (5, 3, 7), mode="trilinear"))
case("grid_sample3d", F.grid_sample(fill(1, 1, 2, 3, 4, 5), 1.5 * fill(2, 1, 2, 3, 2, 3), padding_mode="reflection",
                                    align_corners=False))
q, k, v = fill(1, 2, 4, 3, 5), fill(2, 2, 2, 6, 5), fill(3, 2, 2, 6, 4)
case("attention_grouped", F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1),
                                                         attn_mask=fill(4, 3, 6)))
packed = fill(1, 2, 3, 3, 2, 4)  # batch, sequence, (q k v), head, size
q, k, v = (packed[:, :, i].permute(0, 2, 1, 3) for i in range(3))
case("attention_fused", F.scaled_dot_product_attention(q, k, v, scale=0.5).permute(0, 2, 1, 3))
case("det", torch.linalg.det(fill(1, 3, 4, 4)))

print("// SPDX-License-Identifier: Apache-2.0\n// Made by tests/tools/make_nn_cases.py from PyTorch %s." % torch.__version__)
print("// clang-format off")
for name, values in CASES.items():
    print("static const double nn_%s[] = {" % name)
    for i in range(0, len(values), 8):
        print("    " + " ".join("%.9g," % x for x in values[i:i + 8]))
    print("};")
