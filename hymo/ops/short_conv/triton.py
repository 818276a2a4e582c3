"""The convolution in Triton, and its registration as two operators, which is what torch.compile and autograd see.

One program walks SPAN tokens of a strip of channels in order. What a token looks back on stays in registers, so every number is loaded and converted
once and every sigmoid is taken once, and only the W−1 tokens around a span are read by two programs. The backward computes the convolution again: it
reads x and dy and writes dx, and leaves each program's share of dweight to be added up, in an order that never changes.

A window is a tuple of W strips, the present token's first. GROUP tokens are loaded ahead of the work on them: the compiler moves no load over a
store, and it is the loads under way that hide the memory's latency.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment"
# A kernel's arguments are pointers and constants, for which Python has no types; its tuples grow.

import torch
import triton
import triton.language as tl
from torch import Tensor, library

LOG2_E = tl.constexpr(1.4426950408889634)
CHANNELS, WARPS = 128, 1                    # of a program: four channels a thread
FORWARD_SPAN, BACKWARD_SPAN = 32, 64        # tokens of a program: few, to fill the device evenly, or many, for few shares of dweight
GROUP = 4                                   # tokens of one round of loads


@triton.jit
def _zeros(W: tl.constexpr, CHANNELS: tl.constexpr, WIDE: tl.constexpr):
    """An empty window."""
    window = ()
    for _ in tl.static_range(W):
        window += (tl.zeros([CHANNELS], WIDE),)
    return window


@triton.jit
def _push(window, present, start, W: tl.constexpr):
    """The window one token later. A token that starts a document sees nothing before it."""
    later = (present,)
    for j in tl.static_range(W - 1):
        later += (tl.where(start, 0.0, window[j]),)
    return later


@triton.jit
def _is_start(starts_ptr, t, inside):
    if starts_ptr is None:
        return False
    else:
        return tl.load(starts_ptr + t, mask=inside, other=0) != 0


@triton.jit
def _load_rows(x_ptr, t, end, channel, D, GROUP: tl.constexpr, WIDE: tl.constexpr):
    """GROUP tokens from t on; zeros from the channel's `end` on."""
    rows = ()
    for k in tl.static_range(GROUP):
        rows += (tl.load(x_ptr + (t + k) * D + channel, mask=t + k < end, other=0.0).to(WIDE),)
    return rows


@triton.jit
def _load_starts(starts_ptr, t, tokens, GROUP: tl.constexpr):
    starts = ()
    for k in tl.static_range(GROUP):
        starts += (_is_start(starts_ptr, t + k, t + k < tokens),)
    return starts


@triton.jit
def _load_weight(weight_ptr, channel, D, W: tl.constexpr, WIDE: tl.constexpr):
    """The weight of each tap, the present token's first."""
    weight = ()
    for j in tl.static_range(W):
        weight += (tl.load(weight_ptr + channel * W + (W - 1 - j), mask=channel < D, other=0.0).to(WIDE),)
    return weight


@triton.jit
def _window_before(x_ptr, history_ptr, starts_ptr, begin, channel, D, W: tl.constexpr, CHANNELS: tl.constexpr, WIDE: tl.constexpr):
    """The window of the token before a span: inputs, or, in the first span, the history."""
    window = _zeros(W, CHANNELS, WIDE)
    source = tl.where(channel < D, begin, -1)
    for k in tl.static_range(W - 1):
        t = k - (W - 1)
        past = tl.load(x_ptr + t * D + channel, mask=source > 0, other=0.0).to(WIDE)
        if history_ptr is not None:
            past += tl.load(history_ptr + k * D + channel, mask=source == 0, other=0.0).to(WIDE)
        window = _push(window, past, _is_start(starts_ptr, t, begin > 0), W)
    return window


@triton.jit
def _convolve(weight, window, W: tl.constexpr):
    total = weight[0] * window[0]
    for j in tl.static_range(1, W):
        total += weight[j] * window[j]
    return total


@triton.jit
def _sigmoid(x):
    """1 / (1 + e^−x), the reciprocal as a root squared: a division would guard against numbers that cannot come."""
    root = tl.rsqrt(1 + tl.exp2(x * -LOG2_E))
    return root * root


@triton.jit(do_not_specialize=["T"])
def forward_kernel(
    x_ptr, weight_ptr, history_ptr, starts_ptr, y_ptr,
    T, D,
    W: tl.constexpr, SILU: tl.constexpr, SPAN: tl.constexpr, GROUP: tl.constexpr, CHANNELS: tl.constexpr, WIDE: tl.constexpr,
):
    """SPAN outputs."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    begin, row = tl.program_id(1) * SPAN, tl.program_id(2)
    at = row.to(tl.int64) * T + begin
    x_ptr += at * D
    y_ptr += at * D
    if starts_ptr is not None:
        starts_ptr += at
    if history_ptr is not None:
        history_ptr += row.to(tl.int64) * (W - 1) * D
    weight = _load_weight(weight_ptr, channel, D, W, WIDE)
    window = _window_before(x_ptr, history_ptr, starts_ptr, begin, channel, D, W, CHANNELS, WIDE)
    tokens = tl.minimum(T - begin, SPAN)
    end = tl.where(channel < D, tokens, 0)
    for t in range(0, tokens, GROUP):
        x = _load_rows(x_ptr, t, end, channel, D, GROUP, WIDE)
        starts = _load_starts(starts_ptr, t, tokens, GROUP)
        for k in tl.static_range(GROUP):
            window = _push(window, x[k], starts[k], W)
            y = _convolve(weight, window, W)
            if SILU:
                y *= _sigmoid(y)
            tl.store(y_ptr + (t + k) * D + channel, y.to(y_ptr.dtype.element_ty), mask=t + k < end)


@triton.jit(do_not_specialize=["T"])
def backward_kernel(
    x_ptr, weight_ptr, history_ptr, starts_ptr, dy_ptr, dx_ptr, shares_ptr, dhistory_ptr,
    T, D,
    W: tl.constexpr, SILU: tl.constexpr, SPAN: tl.constexpr, GROUP: tl.constexpr, CHANNELS: tl.constexpr, WIDE: tl.constexpr,
):
    """The gradients of SPAN inputs, for which the W−1 tokens after them are walked too."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    begin, row = tl.program_id(1) * SPAN, tl.program_id(2)
    at = row.to(tl.int64) * T + begin
    x_ptr += at * D
    dy_ptr += at * D
    dx_ptr += at * D
    if starts_ptr is not None:
        starts_ptr += at
    if history_ptr is not None:
        history_ptr += row.to(tl.int64) * (W - 1) * D
        dhistory_ptr += row.to(tl.int64) * (W - 1) * D
    weight = _load_weight(weight_ptr, channel, D, W, WIDE)
    window = _window_before(x_ptr, history_ptr, starts_ptr, begin, channel, D, W, CHANNELS, WIDE)
    dwindow = _zeros(W, CHANNELS, WIDE)     # what the inputs in the window have of their gradients so far
    dweight = _zeros(W, CHANNELS, WIDE)
    back = W - 1                            # how far the present token sees
    own, walked = tl.minimum(T - begin, SPAN), tl.minimum(T - begin, SPAN + W - 1)
    end = tl.where(channel < D, walked, 0)
    own_begin, own_end = tl.zeros_like(channel), tl.where(channel < D, own, 0)
    history_end = tl.where(channel < D, tl.where(begin == 0, W - 1, 0), 0)
    for t in range(0, own + W - 1, GROUP):
        x = _load_rows(x_ptr, t, end, channel, D, GROUP, WIDE)
        dy = _load_rows(dy_ptr, t, end, channel, D, GROUP, WIDE)
        starts = _load_starts(starts_ptr, t, walked, GROUP)
        for k in tl.static_range(GROUP):
            window = _push(window, x[k], starts[k], W)
            dconv = dy[k]
            if SILU:
                conv = _convolve(weight, window, W)
                sigmoid = _sigmoid(conv)
                dconv *= sigmoid
                dconv += dconv * (conv - conv * sigmoid)
            counted = tl.where(t + k < SPAN, dconv, 0.0)
            if starts_ptr is not None:
                back = tl.where(starts[k], 0, tl.minimum(back + 1, W - 1))
            dwindow_next = (weight[0] * dconv,)
            dweight_next = (dweight[0] + counted * window[0],)
            for j in tl.static_range(1, W):
                dwindow_next += (dwindow[j - 1] + weight[j] * tl.where(j <= back, dconv, 0.0),)
                dweight_next += (dweight[j] + counted * window[j],)
            dwindow, dweight = dwindow_next, dweight_next
            done = t + k - (W - 1)          # the input that no later token sees
            dx = dwindow[W - 1].to(dx_ptr.dtype.element_ty)
            tl.store(dx_ptr + done * D + channel, dx, mask=(done >= own_begin) & (done < own_end))
            if history_ptr is not None:
                tl.store(dhistory_ptr + (t + k) * D + channel, dx, mask=t + k < history_end)
    share = row * tl.num_programs(1) + tl.program_id(1)
    for j in tl.static_range(W):
        tl.store(shares_ptr + (share.to(tl.int64) * W + (W - 1 - j)) * D + channel, dweight[j], mask=channel < D)


def _launch(x: Tensor, weight: Tensor, span: int) -> tuple[tuple[int, int, int], dict[str, object]]:
    """Grid and constants of either kernel."""
    B, T, D = x.shape
    W = weight.shape[1]
    span = max(span, triton.next_power_of_2(W))         # a window looks back on one span at most
    channels = min(CHANNELS, triton.next_power_of_2(D))
    wide = tl.float64 if x.dtype == torch.float64 else tl.float32
    constants = {"W": W, "SPAN": span, "GROUP": GROUP, "CHANNELS": channels, "WIDE": wide, "num_warps": WARPS}
    return (triton.cdiv(D, channels), triton.cdiv(T, span), B), constants


@library.custom_op("hymo::short_conv", mutates_args=())
def _forward(x: Tensor, weight: Tensor, history: Tensor | None, starts: Tensor | None, silu: bool) -> Tensor:
    x, weight = x.contiguous(), weight.contiguous()
    history, starts = (z if z is None else z.contiguous() for z in (history, starts))
    y = torch.empty_like(x)
    grid, constants = _launch(x, weight, FORWARD_SPAN)
    forward_kernel[grid](x, weight, history, starts, y, *x.shape[1:], SILU=silu, **constants)
    return y


@_forward.register_fake
def _(x, weight, history, starts, silu):
    return x.new_empty(x.shape)


@library.custom_op("hymo::short_conv_backward", mutates_args=())
def _backward(
    x: Tensor, weight: Tensor, history: Tensor | None, starts: Tensor | None, dy: Tensor, silu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and history; the last is empty where there is none."""
    x, weight, dy = x.contiguous(), weight.contiguous(), dy.contiguous()
    history, starts = (z if z is None else z.contiguous() for z in (history, starts))
    grid, constants = _launch(x, weight, BACKWARD_SPAN)
    dx, dhistory = torch.empty_like(x), x.new_empty(0) if history is None else torch.zeros_like(history)
    wide = torch.promote_types(x.dtype, torch.float32)
    shares = x.new_empty(grid[2] * grid[1], *weight.mT.shape, dtype=wide)
    backward_kernel[grid](
        x, weight, history, starts, dy, dx, shares, None if history is None else dhistory, *x.shape[1:], SILU=silu, **constants
    )
    dweight = torch.empty_like(weight, dtype=wide)
    torch.sum(shares, dim=0, out=dweight.mT)
    return dx, dweight.to(weight.dtype), dhistory


@_backward.register_fake
def _(x, weight, history, starts, dy, silu):
    return x.new_empty(x.shape), weight.new_empty(weight.shape), x.new_empty(0 if history is None else history.shape)


def _save(ctx, inputs, output):
    *tensors, ctx.silu = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, dy):
    x, weight, history, starts = ctx.saved_tensors
    dx, dweight, dhistory = _backward(x, weight, history, starts, dy, ctx.silu)
    return dx, dweight, None if history is None else dhistory, None, None


_forward.register_autograd(_differentiate, setup_context=_save)


def short_conv_triton(x_BTD: Tensor, weight_DW: Tensor, history_BWD: Tensor | None, starts_BT: Tensor | None, silu: bool) -> Tensor:
    """Same function as the reference, to the rounding of x's dtype."""
    y_BTD: Tensor = _forward(x_BTD, weight_DW, history_BWD, starts_BT, silu)
    return y_BTD
