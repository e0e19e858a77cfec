// Operations of the model that are several of ggml's. Shapes in comments are the model's,
// outermost first; numbers of dimensions are ggml's, innermost first. All tensors are contiguous.
#pragma once

#include "graph.h"

#include <array>
#include <cmath>

namespace ops {

using Pair = std::array<int, 2>;  // y, x

// Dimension i of x becomes dimension `to`[i].
inline ggml_tensor * permute(ggml_context * ctx, ggml_tensor * x, std::array<int, 4> to) {
    return ggml_cont(ctx, ggml_permute(ctx, x, to[0], to[1], to[2], to[3]));
}

inline ggml_tensor * slice(ggml_context * ctx, ggml_tensor * x, int dim, int64_t start, int64_t end) {
    std::array<int64_t, 4> ne = {x->ne[0], x->ne[1], x->ne[2], x->ne[3]};
    ne[dim] = end - start;
    return ggml_cont(ctx, ggml_view_4d(ctx, x, ne[0], ne[1], ne[2], ne[3], x->nb[1], x->nb[2],
                                       x->nb[3], start * x->nb[dim]));
}

inline ggml_tensor * concat(ggml_context * ctx, const std::vector<ggml_tensor *> & parts, int dim) {
    ggml_tensor * all = parts[0];
    for (size_t i = 1; i < parts.size(); i++) {
        all = ggml_concat(ctx, all, parts[i], dim);
    }
    return all;
}

// x [..., m, k], w [..., n, k] -> [..., m, n], with sums in f32.
inline ggml_tensor * mul_mat(ggml_context * ctx, ggml_tensor * w, ggml_tensor * x) {
    ggml_tensor * y = ggml_mul_mat(ctx, w, x);
    ggml_mul_mat_set_prec(y, GGML_PREC_F32);
    return y;
}

// ------------------------------------------------------------------ convolution

// Zeros around the image, how far the window moves, and distances within it.
struct Window {
    std::array<int, 4> pads = {0, 0, 0, 0};  // top, left, bottom, right
    Pair stride = {1, 1};
    Pair dilation = {1, 1};
};

// x with those zeros around it that ggml's convolutions do not add by themselves: they pad both
// sides alike. What they are to add is left in `pad`.
inline ggml_tensor * padded(ggml_context * ctx, ggml_tensor * x, const Window & window, Pair & pad) {
    const auto [top, left, bottom, right] = window.pads;
    pad = {top, left};
    if (top == bottom && left == right) {
        return x;
    }
    pad = {0, 0};
    return ggml_pad_ext(ctx, x, left, right, top, bottom, 0, 0, 0, 0);
}

// x [n, c, h, w], kernel [o, c, r, s] -> [n, o, h', w'].
inline ggml_tensor * conv_2d(const Graph & g, ggml_tensor * kernel, ggml_tensor * x,
                             const Window & window = {}) {
    Pair pad;
    x = padded(g.ctx, x, window, pad);
    const auto convolve = g.conv_direct ? ggml_conv_2d_direct : ggml_conv_2d;
    return convolve(g.ctx, kernel, x, window.stride[1], window.stride[0], pad[1], pad[0],
                    window.dilation[1], window.dilation[0]);
}

// Every channel by itself: x [n, c, h, w], kernel [c, 1, r, s] -> [n, c, h', w'].
inline ggml_tensor * conv_2d_depthwise(const Graph & g, ggml_tensor * kernel, ggml_tensor * x,
                                       const Window & window = {}) {
    Pair pad;
    x = padded(g.ctx, x, window, pad);
    return ggml_conv_2d_dw_direct(g.ctx, kernel, x, window.stride[1], window.stride[0], pad[1],
                                  pad[0], window.dilation[1], window.dilation[0]);
}

// Groups of channels by themselves: x [n, c, h, w], kernel [o, c / groups, r, s] -> [n, o, h', w'].
inline ggml_tensor * conv_2d_grouped(const Graph & g, ggml_tensor * kernel, ggml_tensor * x,
                                     int groups, const Window & window = {}) {
    const int64_t in = x->ne[2] / groups, out = kernel->ne[3] / groups;
    std::vector<ggml_tensor *> parts;
    for (int i = 0; i < groups; i++) {
        ggml_tensor * k = slice(g.ctx, kernel, 3, i * out, (i + 1) * out);
        parts.push_back(conv_2d(g, k, slice(g.ctx, x, 2, i * in, (i + 1) * in), window));
    }
    return concat(g.ctx, parts, 2);
}

// ------------------------------------------------------------------ normalisation

// x [..., c], weight and bias [c].
inline ggml_tensor * layer_norm(ggml_context * ctx, ggml_tensor * x, ggml_tensor * weight,
                                ggml_tensor * bias, float epsilon) {
    return ggml_add(ctx, ggml_mul(ctx, ggml_norm(ctx, x, epsilon), weight), bias);
}

// x [..., c], weight [c].
inline ggml_tensor * rms_norm(ggml_context * ctx, ggml_tensor * x, ggml_tensor * weight,
                              float epsilon) {
    return ggml_mul(ctx, ggml_rms_norm(ctx, x, epsilon), weight);
}

// x [n, c, h, w], weight and bias [c].
inline ggml_tensor * group_norm(ggml_context * ctx, ggml_tensor * x, ggml_tensor * weight,
                                ggml_tensor * bias, int groups, float epsilon) {
    ggml_tensor * y = ggml_group_norm(ctx, x, groups, epsilon);
    y = ggml_mul(ctx, y, ggml_reshape_4d(ctx, weight, 1, 1, x->ne[2], 1));
    return ggml_add(ctx, y, ggml_reshape_4d(ctx, bias, 1, 1, x->ne[2], 1));
}

// The largest of each row: x [..., c] -> [..., 1].
inline ggml_tensor * max_rows(ggml_context * ctx, ggml_tensor * x) {
    const int columns = (int) x->ne[0];
    return ggml_pool_2d(ctx, x, GGML_OP_POOL_MAX, columns, 1, columns, 1, 0, 0);
}

// The smallest of each row: x [..., c] -> [..., 1].
inline ggml_tensor * min_rows(ggml_context * ctx, ggml_tensor * x) {
    return ggml_neg(ctx, max_rows(ctx, ggml_neg(ctx, x)));
}

// ------------------------------------------------------------------ element by element

// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2. Unlike ggml_gelu on a CPU, not through a
// table of f16.
inline ggml_tensor * gelu_tanh(ggml_context * ctx, ggml_tensor * x) {
    ggml_tensor * cube = ggml_mul(ctx, ggml_scale_bias(ctx, ggml_sqr(ctx, x), 0.044715f, 1.0f), x);
    ggml_tensor * gate = ggml_tanh(ctx, ggml_scale(ctx, cube, 0.7978845608f));
    return ggml_mul(ctx, ggml_scale_bias(ctx, gate, 0.5f, 0.5f), x);
}

// x sigmoid(1.702 x). Unlike ggml_gelu_quick on a CPU, not through a table of f16.
inline ggml_tensor * quick_gelu(ggml_context * ctx, ggml_tensor * x) {
    return ggml_mul(ctx, ggml_sigmoid(ctx, ggml_scale(ctx, x, 1.702f)), x);
}

// The error function within 1.5e-7 (Abramowitz and Stegun 1964, 7.1.26).
inline ggml_tensor * erf(ggml_context * ctx, ggml_tensor * x) {
    ggml_tensor * size = ggml_abs(ctx, x);
    ggml_tensor * t = ggml_exp(ctx, ggml_neg(ctx, ggml_log(ctx,
        ggml_scale_bias(ctx, size, 0.3275911f, 1.0f))));                 // 1 / (1 + p |x|)
    ggml_tensor * sum = ggml_scale_bias(ctx, t, 1.061405429f, -1.453152027f);
    for (const float a : {1.421413741f, -0.284496736f, 0.254829592f}) {
        sum = ggml_scale_bias(ctx, ggml_mul(ctx, sum, t), 1.0f, a);
    }
    sum = ggml_mul(ctx, ggml_mul(ctx, sum, t), ggml_exp(ctx, ggml_neg(ctx, ggml_sqr(ctx, x))));
    return ggml_mul(ctx, ggml_scale_bias(ctx, sum, -1.0f, 1.0f), ggml_sgn(ctx, x));
}

// 1 where x is above 0, else 0; and so on.
inline ggml_tensor * above_zero(ggml_context * ctx, ggml_tensor * x) {
    return ggml_step(ctx, x);
}

inline ggml_tensor * logical_not(ggml_context * ctx, ggml_tensor * x) {
    return ggml_scale_bias(ctx, x, -1.0f, 1.0f);
}

inline ggml_tensor * not_below_zero(ggml_context * ctx, ggml_tensor * x) {
    return logical_not(ctx, ggml_step(ctx, ggml_neg(ctx, x)));
}

inline ggml_tensor * is_not_zero(ggml_context * ctx, ggml_tensor * x) {
    return ggml_abs(ctx, ggml_sgn(ctx, x));
}

inline ggml_tensor * is_zero(ggml_context * ctx, ggml_tensor * x) {
    return logical_not(ctx, is_not_zero(ctx, x));
}

// 1 where x is not a number: no comparison with one holds.
inline ggml_tensor * is_nan(ggml_context * ctx, ggml_tensor * x) {
    return logical_not(ctx, ggml_step(ctx, ggml_scale_bias(ctx, ggml_sqr(ctx, x), 1.0f, 1.0f)));
}

inline ggml_tensor * is_inf(ggml_context * ctx, ggml_tensor * x) {
    return ggml_step(ctx, ggml_scale_bias(ctx, ggml_abs(ctx, x), 1.0f, -3.4028234e38f));
}

// x, and 0 where it is not a number.
inline ggml_tensor * numbers(ggml_context * ctx, ggml_tensor * x) {
    return ggml_sub(ctx, ggml_relu(ctx, x), ggml_relu(ctx, ggml_neg(ctx, x)));
}

// a where `condition` is 1, b where it is 0; both are finite.
inline ggml_tensor * where(ggml_context * ctx, ggml_tensor * condition, ggml_tensor * a,
                           ggml_tensor * b) {
    return ggml_add(ctx, ggml_mul(ctx, a, condition),
                    ggml_mul(ctx, b, logical_not(ctx, condition)));
}

// The larger of a and b at each place; both of one shape.
inline ggml_tensor * max(ggml_context * ctx, ggml_tensor * a, ggml_tensor * b) {
    return where(ctx, ggml_step(ctx, ggml_sub(ctx, a, b)), a, b);
}

inline ggml_tensor * min(ggml_context * ctx, ggml_tensor * a, ggml_tensor * b) {
    return ggml_neg(ctx, max(ctx, ggml_neg(ctx, a), ggml_neg(ctx, b)));
}

// What is left of a divided by b, with the sign of b (mod) or of a (fmod).
inline ggml_tensor * mod(ggml_context * ctx, ggml_tensor * a, ggml_tensor * b) {
    return ggml_sub(ctx, a, ggml_mul(ctx, b, ggml_floor(ctx, ggml_div(ctx, a, b))));
}

inline ggml_tensor * fmod(ggml_context * ctx, ggml_tensor * a, ggml_tensor * b) {
    return ggml_sub(ctx, a, ggml_mul(ctx, b, ggml_trunc(ctx, ggml_div(ctx, a, b))));
}

// x between `low` and `high`. ggml_clamp writes over its operand, hence the copy.
inline ggml_tensor * clamp(ggml_context * ctx, ggml_tensor * x, float low, float high) {
    return ggml_clamp(ctx, ggml_dup(ctx, x), low, high);
}

// ------------------------------------------------------------------ attention

// softmax(q k^T * scale + mask) v for each head: q [n, t, heads * d], k [n, s, heads * d],
// v [n, s, heads * e], mask [n or 1, heads or 1, t, s] or null -> [n, t, heads * e]. A mask below
// -1e30 is minus infinity; where it is so for all s the result is 0. k and v may have fewer heads,
// each for as many heads of q, over which ggml_mul_mat repeats them.
inline ggml_tensor * attention(ggml_context * ctx, ggml_tensor * q, ggml_tensor * k,
                               ggml_tensor * v, ggml_tensor * mask, int heads, float scale) {
    const auto split = [&](ggml_tensor * x, int64_t count, std::array<int, 4> to) {
        x = ggml_reshape_4d(ctx, x, x->ne[0] / count, count, x->ne[1], x->ne[2]);
        return permute(ctx, x, to);
    };
    const int64_t shared = k->ne[0] * heads / q->ne[0];
    const int64_t tokens = q->ne[1], batch = q->ne[2], width = v->ne[0] / shared * heads;
    q = split(q, heads, {0, 2, 1, 3});                                   // [n, heads, t, d]
    k = split(k, shared, {0, 2, 1, 3});                                  // [n, shared, s, d]
    v = split(v, shared, {1, 2, 0, 3});                                  // [n, shared, e, s]
    mask = mask ? clamp(ctx, mask, -1e30f, INFINITY) : nullptr;
    ggml_tensor * shares = ggml_soft_max_ext(ctx, mul_mat(ctx, k, q), mask, scale, 0.0f);
    if (mask) {
        ggml_tensor * most = max_rows(ctx, mask);                        // [n or 1, heads or 1, t, 1]
        shares = ggml_mul(ctx, shares, above_zero(ctx, ggml_scale_bias(ctx, most, 1.0f, 5e29f)));
    }
    ggml_tensor * y = permute(ctx, mul_mat(ctx, v, shares), {0, 2, 1, 3});  // [n, t, heads, e]
    return ggml_reshape_3d(ctx, y, width, tokens, batch);
}

}  // namespace ops
