"""Entire programs that handle errors, write to what they are given as ``out``, and are run by hooks and transforms."""

from __future__ import annotations

from lamina.testing.fuzz.whole import Whole

__all__ = ["HANDLED"]

HANDLED: dict[str, Whole] = {
    "handled": Whole(
        1,
        "errors of calls that the program handles: of values, shapes and dtypes, after writes and switched modes",
        """
class Suppressing:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        return kind is not None and issubclass(kind, (RuntimeError, IndexError, ValueError))


class Told(Exception):
    pass


def inner(x, i, log):
    <inside>
    return x * 3


def f(x, i, k, log):
    y = x * 2
    <before>
    <tried>
    return <shown>


def program(compile):
    g = compile(f<how>)
    for k, i in enumerate((torch.tensor([0, 1]), torch.tensor([1, 9]), torch.tensor([2, 0]), torch.tensor([-7, 0]))):
        x, log = sample(4, 3, seed=k<grad>), []
        yield x, attempt(g, x, i, k, log)
        yield log, torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        <after>
""",
        {
            "inside": ("<raises>", "log.append(1)\n    <raises>", "<switch>\n    <raises>"),
            "before": ("", "", "y.add_(1)", "<switch>", "log.append(y)", "pause()", "<written>"),
            "written": ("x.detach().mul_(2)", "log.append(x + 1)\n    x.data.add_(1)", "i.add_(0)\n    y = x * 3"),
            "tried": ("<except>", "<except>", "<finally>", "<suppressed>", "<nested>", "<looped>", "<called>"),
            "except": (
                "try:\n        <body>\n    except <kinds>:\n        <handler>",
                "try:\n        <body>\n    except <kinds> as error:\n        <handler>\n    else:\n        y = y + 1",
            ),
            "finally": (
                "try:\n        <body>\n    finally:\n        <ends>",
                "try:\n        <body>\n    except <kinds>:\n        <handler>\n    finally:\n        <ends>",
            ),
            "suppressed": (
                "with Suppressing():\n        <body>",
                "with Suppressing(), torch.no_grad():\n        <body>",
                "with torch.no_grad():\n        <body>",
            ),
            "nested": (
                "try:\n        try:\n            <raises>\n        finally:\n            <ends>\n"
                "    except <kinds>:\n        <handler>",
                "try:\n        try:\n            <raises>\n        except <kinds> as error:\n"
                "            raise Told(k) from error\n    except Told as told:\n        log.append(str(told))",
            ),
            "looped": (
                "for n in range(3):\n        try:\n            <raises>\n        except <kinds>:\n            break\n"
                "        else:\n            y = y + n",
                "for n in range(3):\n        try:\n            <raises>\n        except <kinds>:\n"
                "            continue\n        y = y * 2",
            ),
            "called": (
                "try:\n        y = inner(y, i, log)\n    except <kinds>:\n        <handler>",
                "try:\n        y = inner(x, i, log) + inner(y, i, log)\n    except <kinds>:\n        <handler>",
            ),
            "body": (
                "<raises>",
                "<raises>\n        log.append('past')",
                "<switch>\n        <raises>",
                "<raises>\n        <switch>",
                "y.mul_(2)\n        <raises>\n        y.add_(1)",
                "log.append(0)\n        <raises>\n        log.append(1)",
                "x.detach().mul_(2)\n        y = x + 1\n        <raises>\n        x.detach().add_(1)",
                "<raises>\n        x.detach().mul_(3)\n        <raises>",
                "pause()\n        <raises>",
            ),
            "raises": ("<of_values>", "<of_values>", "<of_dtypes>", "<of_shapes>", "<of_numbers>", "<of_python>"),
            "of_values": (
                "z = x[i]",
                "z = x.index_select(0, i)",
                "z = F.embedding(i, x)",
                "z = torch.gather(x, 0, i.view(2, 1))",
                "z = F.one_hot(i, 3)",
                "z = F.nll_loss(x[:2], i)",
                "z = torch.linalg.cholesky(x[:3] * (i[0] + 1) @ x[:3].t())",
                "z = x.index_put((i,), torch.ones(3))",
                "y[i] = 1.0",
                "z = torch.repeat_interleave(x[:2], i, 0)",
                "z = torch.bincount(i)",
                "assert (i >= 0).all(), 'negative'",
                "z = torch.take(x, i + k)",
            ),
            "of_dtypes": (
                "z = i.softmax(-1)",
                "z = i.mean()",
                "z = i @ x[:2]",
                "z = i.sqrt_()",
                "z = x.bool() - x.bool()",
                "z = i.layer_norm((2,)) if hasattr(i, 'layer_norm') else F.layer_norm(i, (2,))",
                "z = F.conv1d(x[None], torch.ones(2, 4, 1, dtype=torch.float64))",
                "z = torch.arange(3).to(torch.uint16) * 2",
                "z = F.relu6(x.bool())",
            ),
            "of_shapes": (
                "z = x @ x",
                "z = x + torch.ones(7)",
                "z = x.view(5)",
                "z = torch.cat([x, y.t()])",
                "z = x.squeeze(4)",
                "z = x.sum(3)",
                "z = x[:, 5]",
                "z = x[k + 2]",
                "z = x.expand(5, 3)",
                "z = x.reshape(k, -1)",
            ),
            "of_numbers": (
                "z = x * (6 // k)",
                "z = torch.full((2,), k * 100, dtype=torch.int8)",
                "z = x.to(torch.int8) * (k * 100)",
                "z = x.narrow(0, k, 2)",
                "z = x.unfold(0, k, 1)",
                "z = x.clamp()",
                "z = torch.arange(0, k - 2)",
                "z = F.dropout(x, 2.0 * k)",
            ),
            "of_python": (
                "z = {0: x, 2: y}[k]",
                "z = [x, y][k]",
                "z = x.nothing if k % 2 else x",
                "z = x * int('12x'[: k + 1])",
                "z = next(iter([x][k:]))",
                "a, b = x.unbind(0)[:k]",
            ),
            "kinds": (
                "(RuntimeError, IndexError, ValueError)",
                "Exception",
                "IndexError",
                "(RuntimeError, ZeroDivisionError)",
                "(KeyError, IndexError, AttributeError, StopIteration)",
            ),
            "handler": (
                "y = y - 1",
                "log.append('handled')",
                "return y * 5, torch.is_grad_enabled()",
                "<switch>",
                "y = y[:1]\n        log.append(k)",
                "raise",
                "raise Told(k)",
                "y = x[:2].sin()",
            ),
            "ends": ("log.append('end')", "y = y.cos()", "torch.set_grad_enabled(True)", "y.add_(1)"),
            "switch": (
                "torch.set_grad_enabled(False)",
                "torch.set_grad_enabled(True)",
                "log.append(torch.is_grad_enabled())",
            ),
            "shown": ("y", "y, x", "y, torch.is_grad_enabled()", "y.sin(), log", "x * y"),
            "how": ("", "", ", dynamic=True"),
            "grad": ("", ", grad=True"),
            "after": ("", "yield x.grad", "yield x._version"),
        },
    ),
    "given_out": Whole(
        0.7,
        "tensors that calls write their results to: of other sizes and dtypes, views, arguments that are read too",
        """
def f(x, y, o):
    <before>
    r = <call>
    <then>
    return <shown>


def program(compile):
    g = compile(f<how>)
    for k in range(3):
        x, y = sample(3, 4, seed=k<grad>), sample(3, 4, seed=k + 1)
        base = sample(6, 4, seed=9)
        o = <out>
        <mode>
            out = attempt(g, x, y, o)
        yield out, o, base
        if isinstance(out, tuple):
            yield out[0] is o
        yield backward(out), x.grad
""",
        {
            "before": ("", "", "x = x * 2", "o = o * 1", "y = o + y", "o = torch.empty(0)", "o = y[:2]"),
            "call": (
                "torch.add(x, y, out=o)",
                "torch.mul(x, y, out=o)",
                "torch.sin(x, out=o)",
                "torch.matmul(x, y.t(), out=o)",
                "torch.sum(x, 0, out=o)",
                "torch.cat([x, y], out=o)",
                "torch.stack([x[0], y[0]], out=o)",
                "torch.clamp(x, 0, 1, out=o)",
                "torch.where(x > 0, x, y, out=o)",
                "torch.cumsum(x, 1, out=o)",
                "torch.max(x, 0, out=(o, torch.empty(0, dtype=torch.int64)))",
                "torch.sort(x, out=(o, torch.empty(0, dtype=torch.int64)))[0]",
                "torch.arange(12, out=o)",
                "torch.gt(x, y, out=o)",
                "torch.index_select(x, 0, torch.tensor([0, 2]), out=o)",
                "torch.pow(x, 2, out=o)",
                "torch.mm(x, y.t(), out=o)",
                "torch.bitwise_and(x > 0, y > 0, out=o)",
                "torch.full((3, 4), 2.0, out=o)",
            ),
            "then": ("", "", "o.add_(1)", "r = r * 2", "r.mul_(2)", "pause()", "y = o.sin()"),
            "shown": ("r", "r, o", "r, y", "o * 1, r", "r, r is o"),
            "out": (
                "torch.empty(3, 4)",
                "torch.empty(0)",
                "base[:3]",
                "base[::2]",
                "x.detach()",
                "y",
                "torch.zeros(4, 3).t()",
                "torch.zeros(3, 4, dtype=torch.float64)",
                "torch.zeros(3, 4, dtype=torch.int64)",
                "torch.zeros(2, 2)",
                "torch.zeros(3, 4, requires_grad=True)",
                "base[:1].expand(3, 4)",
                "base.view(-1)[1:13].view(3, 4)",
                "torch.zeros(3, 4, dtype=torch.bool)",
            ),
            "mode": ("if True:", "with torch.no_grad():", "with torch.inference_mode(k == 1):"),
            "grad": ("", "", ", grad=True"),
            "how": ("", "", ", dynamic=True"),
        },
    ),
    "module_hooks": Whole(
        1,
        "hooks of modules and tensors: before and after forward, in the backward, registered within, removed, global",
        """
class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(sample(4))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x, scale=1):
        self.seen += x.detach().sum(0)
        return x * self.weight * scale


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Inner(), Inner()
        self.shared = self.first

    def forward(self, x):
        <body>


told = []
net = Outer()


def pre(module, args):
    <pre>


def post(module, args, result):
    <post>


def behind(module, arriving, leaving):
    told.append([None if t is None else t.sum() for t in leaving])
    <behind>


def program(compile):
    g = compile(net<how>)
    handles = []
    for k in range(4):
        x = sample(2, 4, seed=k, grad=<grad>)
        <registered>
        out = attempt(g, x)
        yield out, backward(out), x.grad, net.first.weight.grad, net.second.weight.grad
        yield told[:], net.first.seen
        told.clear()
        <between>
    for handle in handles:
        handle.remove()
    yield attempt(g, sample(2, 4))
""",
        {
            "body": (
                "return self.second(self.first(x))",
                "return self.second(self.first(x), scale=2) + x",
                "y = self.first(x)\n        y.register_hook(lambda g: g * 2)\n        return self.second(y)",
                "y = self.first(x)\n        pause()\n        return self.second(y)",
                "return self.shared(x) + self.first(x).sin()",
                "y = self.first(x)\n        if y.requires_grad:\n            y.retain_grad()\n"
                "        return self.second(y), y",
                "x = x * 1\n        h = x.register_hook(lambda g: g + 1) if x.requires_grad else None\n"
                "        y = self.first(x)\n        if h is not None and y.sum() > 0:\n            h.remove()\n"
                "        return y",
            ),
            "pre": (
                "told.append('pre')",
                "return (args[0] * 2,)",
                "return args[0] + 1",
                "module.seen.zero_()",
                "told.append(args[0].sum())",
            ),
            "post": (
                "told.append('post')",
                "return result * 2",
                "return result.detach() if len(told) > 3 else None",
                "told.append(result.sum())",
                "result.add_(1)",
                "module.kept = result",
            ),
            "behind": ("return None", "return tuple(None if t is None else t * 2 for t in arriving)"),
            "registered": (
                "if k == 1:\n            handles.append(net.first.<registers>)",
                "if k == 1:\n            handles.append(net.<registers>)",
                "if k < 2:\n            handles.append(net.second.<registers>)",
                "if k == 0:\n            handles.append(net.first.<registers>)\n"
                "            handles.append(net.second.<registers2>)",
                "if k == 1:\n            handles.append(net.first.weight.register_hook(lambda g: g * 3))",
                "if k == 1:\n            handles.append("
                "net.first.weight.register_post_accumulate_grad_hook(lambda p: told.append(p.grad.sum())))",
                "if k == 1:\n            handles.append(nn.modules.module.register_module_forward_hook(post))",
            ),
            "registers": (
                "register_forward_pre_hook(pre)",
                "register_forward_hook(post)",
                "register_full_backward_hook(behind)",
                "register_forward_hook(lambda m, a, kw, r: r + len(kw), with_kwargs=True)",
                "register_forward_hook(post, always_call=True)",
                "register_forward_hook(post, prepend=True)",
                "register_full_backward_pre_hook(lambda m, arriving: None)",
                "register_full_backward_pre_hook(lambda m, arriving: (arriving[0] * 2,))",
            ),
            "registers2": (
                "register_forward_hook(post)",
                "register_forward_pre_hook(pre)",
                "register_full_backward_hook(behind)",
            ),
            "between": (
                "",
                "",
                "if k == 2 and handles:\n            handles.pop().remove()",
                "net.eval() if k % 2 else net.train()",
                "net.first, net.second = net.second, net.first",
                "net.first.requires_grad_(k % 2 == 1)",
            ),
            "grad": ("True", "True", "False"),
            "how": ("", "", ", dynamic=True"),
        },
    ),
}
