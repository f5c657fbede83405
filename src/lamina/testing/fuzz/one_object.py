"""Entire programs in which one object stands in several places, or several are equal, and ones with optimizers."""

from __future__ import annotations

from lamina.testing.fuzz.whole import Whole

__all__ = ["ONE_OBJECT"]

ONE_OBJECT: dict[str, Whole] = {
    "one_object": Whole(
        1,
        "one object passed twice or in two places: lists, dicts, modules, tensors, objects with attributes",
        """
class Box:
    def __init__(self, t, k):
        self.t, self.k, self.other = t, k, self


class Layer(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.weight, self.k = nn.Parameter(sample(4, seed=k)), k

    def forward(self, x):
        self.k += 1
        return x * self.weight + self.k


def made(k):
    return <kind>


def f(a, b, x):
    <first>
    <second>
    return <shown>


def program(compile):
    g = compile(f<how>)
    one, other, third = made(1), made(2), made(3)
    for a, b in <pairs>:
        x = sample(4<grad>)
        out = attempt(g, a, b, x)
        yield out, x, backward(out)
        <between>
    yield <told>
""",
        {
            "kind": ("<of_lists>", "<of_lists>", "<of_dicts>", "<of_boxes>", "<of_layers>", "<of_tensors>"),
            "of_lists": ("[sample(4, seed=k), sample(4, seed=k + 1)]", "[sample(4, seed=k)] * 2"),
            "of_dicts": ("{0: sample(4, seed=k), 1: sample(4, seed=k + 1)}",),
            "of_boxes": ("Box(sample(4, seed=k), k)",),
            "of_layers": ("Layer(k)",),
            "of_tensors": ("sample(2, 4, seed=k)", "sample(2, 4, seed=k, grad=True)"),
            "first": (
                "<write>",
                "<write>",
                "c = a",
                "a, b = b, a",
                "x = x * 2 if a is b else x + 1",
                "x = x + 1 if b is a else x",
                "pause()",
            ),
            "write": (
                "a[0] = x * 2",
                "a[1] = b[0] + x",
                "a[0] += 1",
                "a.k = b.k + 1",
                "a.t = x * b.t",
                "b.other = a",
                "a.append(x)",
                "a[0], b[1] = b[1], a[0]",
                "del a[0]",
            ),
            "second": ("<read>", "<read>", "<write>\n    <read>"),
            "read": (
                "y = b[0] * 2 + a[0]",
                "y = a[1] * x + b[0]",
                "y = a[0] * len(b) + b[0]",
                "y = b.t * a.k + a.t",
                "y = b.other.t * a.other.k",
                "y = b(a(x)) + x",
                "y = b(x) * a(x)",
                "y = a * b.t() if a.dim() < 2 else a + b * x",
            ),
            "shown": ("y", "y, x", "y, a is b", "y, y", "[y], {'y': y}", "y, y * 1", "y * x, x * y"),
            "how": ("", "", ", dynamic=True"),
            "pairs": (
                "((one, one), (one, other), (other, one), (other, other))",
                "((one, other), (one, one), (other, third), (third, third))",
                "((one, other), (other, one), (one, one))",
                "((one, one), (other, other), (one, third))",
            ),
            "grad": ("", ", grad=True"),
            "between": ("", "", "one, other = other, one", "attempt(g, b, a, x)", "attempt(lambda: b[0].add_(1))"),
            "told": ("one, other", "[one, other, third] if isinstance(one, (list, dict)) else attempt(lambda: one.k)"),
        },
    ),
    "equal_results": Whole(
        0.7,
        "results of equal value that are written to, of which each is a tensor of its own",
        """
def f(x, w):
    <before>
    a = <one>
    b = <other>
    return <shown>


def program(compile):
    g = compile(f<how>)
    for k in (1, 2):
        x, w = sample(3, 4, seed=k<grad>), sample(4, seed=k + 1<grad>)
        a, b = attempt(g, x, w)
        yield a, b, a is b
        with torch.no_grad():
            attempt(lambda: a.<write>)
        yield a, b, x, backward((a, b)), x.grad, w.grad
""",
        {
            "before": ("", "", "x = x * w", "x = x.t().t()", "w = w * 2"),
            "one": ("<made>", "<rooted>", "<weighed>"),
            "other": ("<made>", "<rooted>", "<weighed>", "<again>"),
            "made": ("x * x.sigmoid()", "F.silu(x)", "x / (1 + (-x).exp())", "x.relu()", "x.clamp(min=0)"),
            "rooted": (
                "x / (x.pow(2).mean(-1, True) + 1e-6).sqrt()",
                "x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-6)",
                "F.normalize(x)",
                "x / x.norm(dim=-1, keepdim=True)",
                "F.rms_norm(x, (4,), eps=1e-6)",
            ),
            "weighed": (
                "x.softmax(-1)",
                "(x - x.amax(-1, True)).exp() / (x - x.amax(-1, True)).exp().sum(-1, True)",
                "F.layer_norm(x, (4,), w)",
                "(x - x.mean(-1, True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt() * w",
                "x @ torch.diag(w)",
            ),
            "again": ("a", "a.view(3, 4)", "a * 1", "x", "x * 1", "a.clone()", "a[:]", "a + 0"),
            "shown": ("a, b", "b, a", "a * 2, 2 * a", "a, b.contiguous()"),
            "write": ("add_(1)", "mul_(0)", "zero_()", "t_()"),
            "how": ("", "", ", dynamic=True"),
            "grad": ("", "", ", grad=True"),
        },
    ),
    "optimizers": Whole(
        1,
        "optimizers: steps compiled and not, groups, schedules, gradients that are not there, state that is loaded",
        """
def program(compile):
    ps = [sample(5, grad=True), sample(3, 4, seed=1, grad=True), sample(2, seed=2<half>, grad=True)]
    o = torch.optim.<kind>(<groups>, <options>)
    s = torch.optim.lr_scheduler.<schedule>
    step = <step>

    def loss(x):
        return sum((p * x).pow(2).sum() for p in ps<used>)

    train = compile(loss<how>)
    for k in range(5):
        <changed>
        <prepare>
        out = attempt(train, 1.0 + k)
        yield out
        attempt(lambda: out.backward())
        <clipped>
        yield attempt(step), [p.grad for p in ps]
        <scheduled>
        yield [p.detach() for p in ps], [group["lr"] for group in o.param_groups]
    yield [[v for v in o.state[p].values()] for p in ps]
""",
        {
            "kind": (
                *("SGD", "SGD", "Adam", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam"),
                *("ASGD", "Rprop"),
            ),
            "options": ("lr=0.1<more>", "lr=0.25, foreach=True<more>", "lr=0.5, foreach=False<more>"),
            "more": ("", "", ", maximize=True", ", weight_decay=0.25", "<of_some>"),
            "of_some": (", momentum=0.5", ", amsgrad=True", ", eps=1e-3"),
            "groups": ("ps", "[{'params': ps[:1]}, {'params': ps[1:], 'lr': 0.05}]", "ps[:2]"),
            "half": ("", "", "", ", dtype=torch.float64"),
            "schedule": ("StepLR(o, 2)", "ExponentialLR(o, 0.5)", "LambdaLR(o, lambda k: 1 / (1 + k))"),
            "step": ("compile(o.step)", "compile(o.step)", "compile(lambda: o.step())", "o.step"),
            "used": ("", "", "[:2]", "[1:]"),
            "how": ("", "", ", dynamic=True"),
            "changed": (
                "",
                "",
                "if k == 2:\n            <change>",
                "if k == 2:\n            <change>",
                "ps[0].requires_grad_(k % 2 == 0)",
            ),
            "change": (
                "o.param_groups[0]['lr'] *= 0.5",
                "o.param_groups[0]['weight_decay'] = 0.125",
                "o.load_state_dict(o.state_dict())",
                "ps[0].grad = None",
                "o.add_param_group({'params': [sample(3, seed=9, grad=True)]})",
            ),
            "prepare": ("o.zero_grad()", "o.zero_grad(set_to_none=False)", ""),
            "clipped": (
                "",
                "",
                "nn.utils.clip_grad_norm_(ps, 1.0)",
                "attempt(compile(lambda: nn.utils.clip_grad_norm_(ps, 1.0)))",
                "nn.utils.clip_grad_value_(ps, 0.5)",
            ),
            "scheduled": ("", "s.step()", "attempt(compile(s.step))"),
        },
    ),
}
