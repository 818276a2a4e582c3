"""The kernels of gated_recurrence. The mathematics is in the package's docstring, the order of launches in triton.py.

    _states     what each span adds to the state, decayed to the span's end
    _scan       states at the span boundaries, X ← decay ⊙ X + added
    _outputs    o, chunk after chunk of a span, the state carried in registers; on request, the state that enters each chunk
    _entering   the same states alone, for a backward that has only the boundary states
    _gradients  of v, b, c, g, A, from a span's last chunk to its first, the state's gradient carried in registers

Time is cut twice: into chunks, whose pairs of tokens meet level by level, and into spans of several chunks. N spans have N + 1 boundaries; boundary n
lies before span n. Turned round in time, with c and do in the place of b and v, _states and _scan give the gradients of the boundary states.

Everything accumulates in float32; products take the operands' dtype, and float32 products are IEEE, not tf32.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import triton
import triton.language as tl

FOREVER = tl.constexpr(1e30)            # the gate of a document's first token: its decay is zero, and sums of it stay finite
SLOWEST = tl.constexpr(-1e-20)          # a rate no decay can tell from zero, except over FOREVER
LOG2_E = tl.constexpr(1.4426950408889634)


# ---- loads and stores -------------------------------------------------------------------------------------------------------------------


@triton.jit
def _tokens(row, begin, T, LENGTH: tl.constexpr):
    """Places of LENGTH tokens of a row, and which of them are inside the sequence."""
    t = begin + tl.arange(0, LENGTH)
    return row.to(tl.int64) * T + t, t < T


@triton.jit
def _chunks(n, T, SPAN: tl.constexpr, C: tl.constexpr):
    """Number of chunks of span n that hold tokens."""
    return tl.cdiv(tl.minimum(T - n * SPAN, SPAN), C)


@triton.jit
def _load_rows(x_ptr, token, inside, head, H, WIDTH: tl.constexpr):
    """Rows `token` of one head of x (B, T, H, WIDTH); zeros outside the sequence."""
    at = (token[:, None] * H + head) * WIDTH + tl.arange(0, WIDTH)[None, :]
    return tl.load(x_ptr + at, mask=inside[:, None], other=0.0)


@triton.jit
def _store_rows(x_ptr, x, token, inside, head, H, WIDTH: tl.constexpr):
    at = (token[:, None] * H + head) * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(x_ptr + at, x.to(x_ptr.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _load_gates(g_ptr, starts_ptr, token, inside, head, H, DOCUMENTS: tl.constexpr):
    """Gates of the tokens, FOREVER at a document's start; outside the sequence 0, which decays nothing."""
    gates = tl.load(g_ptr + token * H + head, mask=inside, other=0.0).to(tl.float32)
    if DOCUMENTS:
        gates = tl.where(tl.load(starts_ptr + token, mask=inside, other=0) != 0, FOREVER, gates)
    return gates


@triton.jit
def _load_chunk_gates(
    g_ptr, starts_ptr, row, begin, chunk, chunks, T, head, H, LENGTH: tl.constexpr, DOCUMENTS: tl.constexpr
):
    """Gates of one of a span's `chunks` chunks, which begins at token `begin`; zeros for a chunk before the first or after the last.

    Two bytes a token are too little for the compiler's own loading ahead, so the kernels ask for the next chunk's gates themselves.
    """
    token, inside = _tokens(row, begin + chunk * LENGTH, T, LENGTH)
    number = tl.zeros([LENGTH], tl.int32) + chunk
    return _load_gates(g_ptr, starts_ptr, token, inside & (number >= 0) & (number < chunks), head, H, DOCUMENTS)


@triton.jit
def _load_rates(A_ptr, head, S: tl.constexpr):
    """Decay rates of one head, for exp2."""
    return tl.minimum(tl.load(A_ptr + head * S + tl.arange(0, S)).to(tl.float32) * LOG2_E, SLOWEST)


@triton.jit
def _state_at(boundary, S: tl.constexpr, D: tl.constexpr):
    """Offsets of the (S, D) state at one boundary of one sequence and head."""
    return boundary.to(tl.int64) * (S * D) + tl.arange(0, S)[:, None] * D + tl.arange(0, D)[None, :]


# ---- decays -----------------------------------------------------------------------------------------------------------------------------
# An exponent is A times a path: the gates between a token and a boundary, added up by themselves and never as a difference of longer sums, so that
# nothing cancels and FOREVER stays inside its document.


@triton.jit
def _decay(rates, path):
    """exp(A·path) as (tokens, S)."""
    return tl.exp2(path[:, None] * rates[None, :])


@triton.jit
def _following(gates):
    """Gate of the token after each, 0 after the last: sums of these leave a token's own gate out."""
    t = tl.arange(0, gates.shape[0])
    last = gates.shape[0] - 1
    return tl.where(t < last, tl.gather(gates, tl.minimum(t + 1, last), axis=0), 0.0)


@triton.jit
def _grow(from_start, to_end, t, LEVEL):
    """Paths from the start of t's run of L = 2^LEVEL tokens (t included) and to its end (t excluded), for runs of 2L."""
    upper = (t >> LEVEL) & 1 == 1
    middle = ((t >> LEVEL) | 1) << LEVEL
    lower_half = tl.gather(from_start, middle - 1, axis=0)                      # all of it: the path to its last token
    upper_half = tl.gather(from_start, middle + (1 << LEVEL) - 1, axis=0)
    return tl.where(upper, lower_half + from_start, from_start), tl.where(upper, to_end, to_end + upper_half)


@triton.jit
def _meet(t, LEVEL):
    """[t, u]: tokens in different halves of one block of 2·2^LEVEL tokens."""
    return (t[:, None] ^ t[None, :]) >> LEVEL == 1


@triton.jit
def _product(x, y):
    return tl.dot(x, y, input_precision="ieee")


@triton.jit
def _decayed(x, decay, dtype: tl.constexpr):
    """x ⊙ decay, rounded for a product."""
    return (x * decay).to(dtype)


@triton.jit
def _walk(state, keys, values, rates, whole):
    """The state after a chunk: decay ⊙ state + Σ_t key_t ⊗ value_t, the keys decayed already along their paths out of the chunk."""
    return state * tl.exp2(rates * whole)[:, None] + _product(tl.trans(keys), values)


# ---- kernels ----------------------------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["T", "H", "N"])
def states_kernel(
    key_ptr, value_ptr, g_ptr, starts_ptr, A_ptr, states_ptr, gates_ptr,
    T, H, N,
    SPAN: tl.constexpr, BLOCK: tl.constexpr, S: tl.constexpr, D: tl.constexpr, DOCUMENTS: tl.constexpr, REVERSE: tl.constexpr,
):
    """What one span adds to the state, and the sum of its gates, BLOCK tokens at a time.

    Forward: b and v, decayed to the span's end, added at the boundary after it. REVERSE: c and do, decayed to its start, at the boundary before.
    """
    head, n, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rates = _load_rates(A_ptr, head, S)
    state = tl.zeros([S, D], tl.float32)
    span_gates = 0.0
    blocks = _chunks(n, T, SPAN, BLOCK)
    block = blocks - 1 if REVERSE else 0
    next_gates = _load_chunk_gates(g_ptr, starts_ptr, row, n * SPAN, block, blocks, T, head, H, BLOCK, DOCUMENTS)
    for step in range(blocks):
        block = blocks - 1 - step if REVERSE else step
        token, inside = _tokens(row, n * SPAN + block * BLOCK, T, BLOCK)
        key = _load_rows(key_ptr, token, inside, head, H, S)
        value = _load_rows(value_ptr, token, inside, head, H, D)
        gates = next_gates
        next_gates = _load_chunk_gates(
            g_ptr, starts_ptr, row, n * SPAN, block - 1 if REVERSE else block + 1, blocks, T, head, H, BLOCK, DOCUMENTS
        )
        path = tl.cumsum(gates, axis=0) if REVERSE else tl.cumsum(_following(gates), axis=0, reverse=True)
        whole = tl.sum(gates, axis=0)
        state = _walk(state, _decayed(key, _decay(rates, path), value.dtype), value, rates, whole)
        span_gates += whole
    sequence = row * H + head
    boundary = n if REVERSE else n + 1
    tl.store(states_ptr + _state_at(sequence.to(tl.int64) * (N + 1) + boundary, S, D), state.to(states_ptr.dtype.element_ty))
    tl.store(gates_ptr + sequence * N + n, span_gates)


@triton.jit(do_not_specialize=["H", "N"])
def scan_kernel(
    states_ptr, gates_ptr, A_ptr, first_ptr, last_ptr,
    H, N,
    S: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr, AHEAD: tl.constexpr, GIVEN: tl.constexpr, REVERSE: tl.constexpr,
):
    """Add up the states in place, boundary after boundary, for TILE of the S·D numbers of one state; AHEAD boundaries are loaded at once.

    `first` is the state at the boundary where the scan begins (zero unless GIVEN); the one where it ends goes to `last`, in float32.
    """
    sequence = tl.program_id(0)
    number = tl.program_id(1) * TILE + tl.arange(0, TILE)
    rates = tl.minimum(tl.load(A_ptr + (sequence % H) * S + number // D).to(tl.float32) * LOG2_E, SLOWEST)
    states_ptr += sequence.to(tl.int64) * (N + 1) * (S * D)
    gates_ptr += sequence * N
    state = tl.zeros([TILE], tl.float32)
    if GIVEN:
        state = tl.load(first_ptr + sequence.to(tl.int64) * (S * D) + number).to(tl.float32)
    tl.store(states_ptr + (N if REVERSE else 0) * (S * D) + number, state.to(states_ptr.dtype.element_ty))
    ahead = tl.arange(0, AHEAD)
    for begin in range(0, N, AHEAD):
        step = begin + ahead
        span = N - 1 - step if REVERSE else step
        at = (span if REVERSE else span + 1)[:, None].to(tl.int64) * (S * D) + number[None, :]
        added = tl.load(states_ptr + at, mask=(step < N)[:, None], other=0.0).to(tl.float32)
        decay = _decay(rates, tl.load(gates_ptr + span, mask=step < N, other=0.0))
        states = added
        for k in tl.static_range(AHEAD):
            now = (ahead == k)[:, None]
            state = tl.sum(tl.where(now, decay * state[None, :] + added, 0.0), axis=0)
            states = tl.where(now, state[None, :], states)
        tl.store(states_ptr + at, states.to(states_ptr.dtype.element_ty), mask=(step < N)[:, None])
    tl.store(last_ptr + sequence.to(tl.int64) * (S * D) + number, state)


@triton.jit(do_not_specialize=["T", "H", "N", "first", "held"])
def entering_kernel(
    v_ptr, b_ptr, g_ptr, starts_ptr, A_ptr, states_ptr, entering_ptr,
    T, H, N, first, held,
    C: tl.constexpr, SPAN: tl.constexpr, S: tl.constexpr, D: tl.constexpr, DOCUMENTS: tl.constexpr,
):
    """The state that enters each chunk of one span; `entering` holds `held` chunks of a sequence, those from span `first` on."""
    head, n, row = tl.program_id(0), first + tl.program_id(1), tl.program_id(2)
    rates = _load_rates(A_ptr, head, S)
    sequence = (row * H + head).to(tl.int64)
    state = tl.load(states_ptr + _state_at(sequence * (N + 1) + n, S, D)).to(tl.float32)
    for chunk in range(_chunks(n, T, SPAN, C)):
        tl.store(entering_ptr + _state_at(sequence * held + (n - first) * (SPAN // C) + chunk, S, D), state.to(entering_ptr.dtype.element_ty))
        token, inside = _tokens(row, n * SPAN + chunk * C, T, C)
        v = _load_rows(v_ptr, token, inside, head, H, D)
        b = _load_rows(b_ptr, token, inside, head, H, S)
        gates = _load_gates(g_ptr, starts_ptr, token, inside, head, H, DOCUMENTS)
        to_end = tl.cumsum(_following(gates), axis=0, reverse=True)
        state = _walk(state, _decayed(b, _decay(rates, to_end), v.dtype), v, rates, tl.sum(gates, axis=0))


@triton.jit(do_not_specialize=["T", "H", "N"])
def outputs_kernel(
    v_ptr, b_ptr, c_ptr, g_ptr, starts_ptr, A_ptr, states_ptr, o_ptr, entering_ptr,
    T, H, N,
    C: tl.constexpr, LEVELS: tl.constexpr, SPAN: tl.constexpr, S: tl.constexpr, D: tl.constexpr, DOCUMENTS: tl.constexpr, KEEP: tl.constexpr,
):
    """o of one span, chunk after chunk. KEEP: also the state that enters each chunk, for the backward."""
    head, n, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    t = tl.arange(0, C)
    same = t[:, None] == t[None, :]
    one = same.to(v_ptr.dtype.element_ty)
    rates = _load_rates(A_ptr, head, S)
    sequence = (row * H + head).to(tl.int64)
    state = tl.load(states_ptr + _state_at(sequence * (N + 1) + n, S, D)).to(tl.float32)
    chunks = _chunks(n, T, SPAN, C)
    next_gates = _load_chunk_gates(g_ptr, starts_ptr, row, n * SPAN, 0, chunks, T, head, H, C, DOCUMENTS)
    for chunk in range(chunks):
        if KEEP:
            tl.store(entering_ptr + _state_at(sequence * tl.cdiv(T, C) + n * (SPAN // C) + chunk, S, D), state.to(entering_ptr.dtype.element_ty))
        token, inside = _tokens(row, n * SPAN + chunk * C, T, C)
        v = _load_rows(v_ptr, token, inside, head, H, D)
        b = _load_rows(b_ptr, token, inside, head, H, S)
        c = _load_rows(c_ptr, token, inside, head, H, S)
        from_start = next_gates
        next_gates = _load_chunk_gates(g_ptr, starts_ptr, row, n * SPAN, chunk + 1, chunks, T, head, H, C, DOCUMENTS)
        whole = tl.sum(from_start, axis=0)
        to_end = tl.zeros_like(from_start)
        scores = tl.where(same, _product(c, tl.trans(b)), 0.0)
        b, c = _product(one, b), _product(one, c)       # in float32 and in the layout that products leave, where all the rest is
        for LEVEL in tl.static_range(LEVELS):
            upper = (t >> LEVEL) & 1 == 1
            x = _decayed(tl.where(upper[:, None], c, b), _decay(rates, tl.where(upper, from_start, to_end)), v.dtype)
            scores = tl.where(_meet(t, LEVEL) & (t[:, None] > t[None, :]), _product(x, tl.trans(x)), scores)
            from_start, to_end = _grow(from_start, to_end, t, LEVEL)
        o = _product(scores.to(v.dtype), v)
        o += _product(_decayed(c, _decay(rates, from_start), v.dtype), state.to(v.dtype))
        _store_rows(o_ptr, o, token, inside, head, H, D)
        state = _walk(state, _decayed(b, _decay(rates, to_end), v.dtype), v, rates, whole)


@triton.jit(do_not_specialize=["T", "H", "N", "first", "held"])
def gradients_kernel(
    v_ptr, b_ptr, c_ptr, g_ptr, starts_ptr, A_ptr, entering_ptr, do_ptr, dstates_ptr,
    dv_ptr, db_ptr, dc_ptr, dg_ptr, dA_ptr,
    T, H, N, first, held,
    C: tl.constexpr, LEVELS: tl.constexpr, SPAN: tl.constexpr, S: tl.constexpr, D: tl.constexpr, DOCUMENTS: tl.constexpr,
):
    """Gradients of the operands in one span, from its last chunk to its first; of A, this span's share.

    `entering` holds `held` chunks of a sequence, those from span `first` on.
    """
    head, n, row = tl.program_id(0), first + tl.program_id(1), tl.program_id(2)
    t = tl.arange(0, C)
    earlier, same = t[:, None] < t[None, :], t[:, None] == t[None, :]
    one = same.to(v_ptr.dtype.element_ty)
    rates = _load_rates(A_ptr, head, S)
    sequence = (row * H + head).to(tl.int64)
    dstate = tl.load(dstates_ptr + _state_at(sequence * (N + 1) + n + 1, S, D)).to(tl.float32)
    dA_share = tl.zeros([S], tl.float32)
    chunks = _chunks(n, T, SPAN, C)
    next_gates = _load_chunk_gates(g_ptr, starts_ptr, row, n * SPAN, chunks - 1, chunks, T, head, H, C, DOCUMENTS)
    for step in range(chunks):
        chunk = chunks - 1 - step
        token, inside = _tokens(row, n * SPAN + chunk * C, T, C)
        v = _load_rows(v_ptr, token, inside, head, H, D)
        do = _load_rows(do_ptr, token, inside, head, H, D)
        b = _load_rows(b_ptr, token, inside, head, H, S)
        c = _load_rows(c_ptr, token, inside, head, H, S)
        gates = next_gates
        next_gates = _load_chunk_gates(g_ptr, starts_ptr, row, n * SPAN, chunk - 1, chunks, T, head, H, C, DOCUMENTS)
        whole = tl.sum(gates, axis=0)
        from_start, to_end = gates, tl.zeros_like(gates)

        # Through the scores. Both triangles of dpairs are kept, since a level's X holds rows of c and rows of b. A token with itself first.
        dpairs = tl.where(earlier, _product(v, tl.trans(do)), _product(do, tl.trans(v)))
        scores_transposed = tl.where(same, _product(b, tl.trans(c)), 0.0)
        dself = tl.where(same, dpairs, 0.0).to(v.dtype)
        dc, db = _product(dself, b), _product(dself, c)
        dpairs = dpairs.to(v.dtype)

        # Level by level, as in the forward. dlog is the gradient of an exponent A·path, signed: t's gate is in a path that ends at t, and out of
        # one that begins there. It takes X as rounded for the products; then the two ends of a pair cancel outside their path.
        b, c = _product(one, b), _product(one, c)       # in float32 and in the layout that products leave, where all the rest is
        dlog = tl.zeros([C, S], tl.float32)
        for LEVEL in tl.static_range(LEVELS):
            upper = (t >> LEVEL) & 1 == 1
            decay = _decay(rates, tl.where(upper, from_start, to_end))
            x = _decayed(tl.where(upper[:, None], c, b), decay, v.dtype)
            meet = _meet(t, LEVEL)
            scores_transposed = tl.where(meet & earlier, _product(x, tl.trans(x)), scores_transposed)
            dx = _product(tl.where(meet, dpairs, 0.0).to(v.dtype), x)
            signed = tl.where(same, tl.where(upper, 1.0, -1.0)[:, None], 0.0).to(v.dtype)
            dlog += dx * _product(signed, x)
            dx *= decay
            dc += dx * upper.to(tl.float32)[:, None]
            db += dx * (1.0 - upper.to(tl.float32))[:, None]
            from_start, to_end = _grow(from_start, to_end, t, LEVEL)
        dv = _product(scores_transposed.to(v.dtype), do)

        # Summed over a chunk, dlog times the gates before a token is dlog times its path, whatever point the gates are counted from.
        before = from_start
        if DOCUMENTS:
            starts = (gates >= FOREVER).to(tl.int32)
            before = tl.cumsum(tl.where(starts == 0, gates, 0.0), axis=0)
        dA = dlog * before[:, None]
        into = tl.sum(dlog * rates[None, :], axis=1)

        # Through the state that enters, the one that leaves, and straight from one to the other.
        entering = tl.load(entering_ptr + _state_at(sequence * held + (n - first) * (SPAN // C) + chunk, S, D))
        dlog_whole = tl.exp2(rates * whole) * tl.sum(entering.to(tl.float32) * dstate, axis=1)
        decay = _decay(rates, from_start)
        c_in = _decayed(c, decay, v.dtype)
        dc_in = _product(do, tl.trans(entering.to(v.dtype))) * decay
        _store_rows(dc_ptr, dc + dc_in, token, inside, head, H, S)
        dlog_in = dc_in * c
        dA += dlog_in * from_start[:, None]
        into += tl.sum(dlog_in * rates[None, :], axis=1)

        decay = _decay(rates, to_end)
        dv += _product(_decayed(b, decay, v.dtype), dstate.to(v.dtype))
        _store_rows(dv_ptr, dv, token, inside, head, H, D)
        db_out = _product(v, tl.trans(dstate.to(v.dtype))) * decay
        _store_rows(db_ptr, db + db_out, token, inside, head, H, S)
        dlog_out = db_out * b
        dA += dlog_out * to_end[:, None]
        out_of = tl.sum(dlog_out * rates[None, :], axis=1)

        # An exponent's gradient goes to every gate in its path: to the gates before t for a path that ends at t, else to those after.
        shares = tl.where(earlier, out_of[:, None], into[:, None])                    # [t, j]: what the path of t gives to the gate of j
        if DOCUMENTS:
            document = tl.cumsum(starts, axis=0)
            shares = tl.where((document[:, None] == document[None, :]) & (starts == 0)[None, :], shares, 0.0)
        dg = tl.sum(shares, axis=0) + tl.sum(dlog_whole * rates, axis=0)
        dA_share += tl.sum(dA, axis=0) + dlog_whole * whole
        tl.store(dg_ptr + token * H + head, (dg / LOG2_E).to(dg_ptr.dtype.element_ty), mask=inside)
        dstate = _walk(dstate, c_in, do, rates, whole)
    share = (row * N + n) * H + head
    tl.store(dA_ptr + share.to(tl.int64) * S + tl.arange(0, S), dA_share)
