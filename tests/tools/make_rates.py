# SPDX-License-Identifier: Apache-2.0
"""Learning rates of every schedule by torch.optim.lr_scheduler: tests/data/train/rates.txt, which engine/train/train_rate_test.c compares ours with.
usage: make_rates.py OUT-FILE     A line is: schedule, warm-up steps, learning rate, epochs, steps per epoch, then the rate of each step."""
import sys, warnings
import torch

warnings.filterwarnings('ignore')
S = torch.optim.lr_scheduler
SCHEDULES = {  # name: scheduler of (optimizer, rate, epochs, steps per epoch), and whether it is called after each step (else each epoch)
    'constant': (lambda o, lr, e, n: S.ConstantLR(o, 1.), True),
    'step:2:0.3': (lambda o, lr, e, n: S.StepLR(o, 2, .3), False),
    'exponential:0.7': (lambda o, lr, e, n: S.ExponentialLR(o, .7), False),
    'cosine': (lambda o, lr, e, n: S.CosineAnnealingLR(o, e * n), True),
    'linear': (lambda o, lr, e, n: S.LinearLR(o, 1., 0., e * n), True),
    'one-cycle': (lambda o, lr, e, n: S.OneCycleLR(o, lr, e * n, cycle_momentum=False), True),
}


def rates(make, each, lr, epochs, per):
    o = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr)
    s = make(o, lr, epochs, per); out = []
    for i in range(epochs * per):
        out.append(o.param_groups[0]['lr']); o.step()
        if each and i + 1 < epochs * per or not each and (i + 1) % per == 0: s.step()
    return out


with open(sys.argv[1], 'w') as f:
    for name, (make, each) in SCHEDULES.items():
        for lr, epochs, per, warm in ((.8, 6, 5, 0), (1e-3, 5, 7, 4), (.1, 1, 3, 2), (.5, 2, 2, 0)):
            grow = rates(lambda o, *a: S.LinearLR(o, 1 / warm, 1., warm - 1), True, 1., epochs, per) if warm else [1.] * epochs * per
            print(name, warm, lr, epochs, per, *(f'{a * b:.12g}' for a, b in zip(rates(make, each, lr, epochs, per), grow)), file=f)
