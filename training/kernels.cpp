// What a step of the denoiser's training spends its time on, for processor cores: pixels lie in
// memory with their channels beside each other ([image][row][column][channel], float32).
//
// Convolutions of 3x3 are done by Winograd's method F(n x n, 3 x 3) (arXiv:1509.09308): tiles of
// n + 2 pixels a side become as many planes of matrices, whose products are left to a library of
// matrix products; n = 4 multiplies 4 times less than the definition, n = 2 2.25 times. A `back` is
// the adjoint of its function: what gradients go through.

#include <cmath>
#include <cstring>
#include <vector>

typedef float Lane __attribute__((vector_size(32), aligned(4)));  // 8 channels
const int LINE = 16;  // channels in a line of cache, which is read and written as a whole

template <int OUT> struct Method;

template <> struct Method<2> {
    static constexpr float input[4][4] = {
        {1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, 1, 0, -1}};
    static constexpr float filter[4][3] = {{1, 0, 0}, {.5, .5, .5}, {.5, -.5, .5}, {0, 0, 1}};
    static constexpr float output[2][4] = {{1, 1, 1, 0}, {0, 1, -1, -1}};
};

template <> struct Method<4> {
    static constexpr float input[6][6] = {
        {4, 0, -5, 0, 1, 0}, {0, -4, -4, 1, 1, 0}, {0, 4, -4, -1, 1, 0},
        {0, -2, -1, 2, 1, 0}, {0, 2, -1, -2, 1, 0}, {0, 4, 0, -5, 0, 1}};
    static constexpr float filter[6][3] = {
        {1 / 4.f, 0, 0}, {-1 / 6.f, -1 / 6.f, -1 / 6.f}, {-1 / 6.f, 1 / 6.f, -1 / 6.f},
        {1 / 24.f, 1 / 12.f, 1 / 6.f}, {1 / 24.f, -1 / 12.f, 1 / 6.f}, {0, 0, 1}};
    static constexpr float output[4][6] = {
        {1, 1, 1, 1, 1, 0}, {0, 1, -1, 2, -2, 0}, {0, 1, 1, 4, 4, 0}, {0, 1, -1, 8, -8, 1}};
};

// matrix * square * matrix', of lanes: [C][C] to [R][R].
template <int R, int C>
static inline __attribute__((always_inline)) void change(
        const float (&matrix)[R][C], const Lane (&square)[C][C], Lane (&found)[R][R]) {
    Lane half[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) {
            Lane sum = {};
#pragma GCC unroll 8
            for (int k = 0; k < C; k++)
                if (matrix[r][k] != 0) sum += matrix[r][k] * square[k][c];
            half[r][c] = sum;
        }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < R; c++) {
            Lane sum = {};
#pragma GCC unroll 8
            for (int k = 0; k < C; k++)
                if (matrix[c][k] != 0) sum += matrix[c][k] * half[r][k];
            found[r][c] = sum;
        }
}

// matrix' * square * matrix, of lanes: [R][R] to [C][C].
template <int R, int C>
static inline __attribute__((always_inline)) void change_back(
        const float (&matrix)[R][C], const Lane (&square)[R][R], Lane (&found)[C][C]) {
    Lane half[C][R];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++)
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            Lane sum = {};
#pragma GCC unroll 8
            for (int k = 0; k < R; k++)
                if (matrix[k][c] != 0) sum += matrix[k][c] * square[k][r];
            half[c][r] = sum;
        }
#pragma GCC unroll 8
    for (int c = 0; c < C; c++)
#pragma GCC unroll 8
        for (int r = 0; r < C; r++) {
            Lane sum = {};
#pragma GCC unroll 8
            for (int k = 0; k < R; k++)
                if (matrix[k][r] != 0) sum += matrix[k][r] * half[c][k];
            found[c][r] = sum;
        }
}

template <int SIDE> struct Block {  // a line of channels of SIDE x SIDE pixels or planes
    Lane part[2][SIDE][SIDE];

    void read(const float *const (&from)[SIDE][SIDE], long at) {
        for (int r = 0; r < SIDE; r++)
            for (int c = 0; c < SIDE; c++) {
                const Lane *here = (const Lane *)(from[r][c] + at);
                part[0][r][c] = here[0];
                part[1][r][c] = here[1];
            }
    }

    void read(const float *from, long plane) {
        for (int r = 0; r < SIDE; r++)
            for (int c = 0; c < SIDE; c++) {
                const Lane *here = (const Lane *)(from + (r * SIDE + c) * plane);
                part[0][r][c] = here[0];
                part[1][r][c] = here[1];
            }
    }

    void write(float *to, long plane) const {
        for (int r = 0; r < SIDE; r++)
            for (int c = 0; c < SIDE; c++) {
                Lane *here = (Lane *)(to + (r * SIDE + c) * plane);
                here[0] = part[0][r][c];
                here[1] = part[1][r][c];
            }
    }
};

static const int CHANNELS_MAX = 4096;
static const float zeros[CHANNELS_MAX] = {};

struct Picture {
    long images, height, width, channels;
};

// Pixels x [images][height][width][channels] to planes v [(OUT + 2)^2][tiles][channels].
template <int OUT> static void tiles_in(const float *x, float *v, Picture p) {
    const int SIDE = OUT + 2;
    long down = p.height / OUT, across = p.width / OUT, tile = 0;
    long plane = p.images * down * across * p.channels;
    for (long image = 0; image < p.images; image++)
        for (long ty = 0; ty < down; ty++)
            for (long tx = 0; tx < across; tx++, tile++) {
                const float *from[SIDE][SIDE];
                for (int r = 0; r < SIDE; r++)
                    for (int c = 0; c < SIDE; c++) {
                        long row = ty * OUT - 1 + r, column = tx * OUT - 1 + c;
                        bool inside = row >= 0 && row < p.height && column >= 0 && column < p.width;
                        from[r][c] = !inside ? zeros
                            : x + ((image * p.height + row) * p.width + column) * p.channels;
                    }
                for (long at = 0; at < p.channels; at += LINE) {
                    Block<SIDE> pixels, found;
                    pixels.read(from, at);
                    for (int half = 0; half < 2; half++)
                        change(Method<OUT>::input, pixels.part[half], found.part[half]);
                    found.write(v + tile * p.channels + at, plane);
                }
            }
}

template <int OUT> static void tiles_in_back(const float *dv, float *dx, Picture p) {
    const int SIDE = OUT + 2;
    long down = p.height / OUT, across = p.width / OUT, tile = 0;
    long plane = p.images * down * across * p.channels;
    std::memset(dx, 0, sizeof(float) * p.images * p.height * p.width * p.channels);
    for (long image = 0; image < p.images; image++)
        for (long ty = 0; ty < down; ty++)
            for (long tx = 0; tx < across; tx++, tile++)
                for (long at = 0; at < p.channels; at += LINE) {
                    Block<SIDE> planes, found;
                    planes.read(dv + tile * p.channels + at, plane);
                    for (int half = 0; half < 2; half++)
                        change_back(Method<OUT>::input, planes.part[half], found.part[half]);
                    for (int r = 0; r < SIDE; r++)
                        for (int c = 0; c < SIDE; c++) {
                            long row = ty * OUT - 1 + r, column = tx * OUT - 1 + c;
                            if (row < 0 || row >= p.height || column < 0 || column >= p.width)
                                continue;
                            Lane *to = (Lane *)(dx + at + p.channels * (
                                (image * p.height + row) * p.width + column));
                            to[0] += found.part[0][r][c];
                            to[1] += found.part[1][r][c];
                        }
                }
}

// Planes m [(OUT + 2)^2][tiles][channels] to pixels y, plus a bias.
template <int OUT> static void tiles_out(const float *m, const float *bias, float *y, Picture p) {
    long down = p.height / OUT, across = p.width / OUT, tile = 0;
    long plane = p.images * down * across * p.channels;
    for (long image = 0; image < p.images; image++)
        for (long ty = 0; ty < down; ty++)
            for (long tx = 0; tx < across; tx++, tile++)
                for (long at = 0; at < p.channels; at += LINE) {
                    Block<OUT + 2> planes;
                    Block<OUT> found;
                    planes.read(m + tile * p.channels + at, plane);
                    const Lane *more = (const Lane *)(bias + at);
                    for (int half = 0; half < 2; half++)
                        change(Method<OUT>::output, planes.part[half], found.part[half]);
                    for (int r = 0; r < OUT; r++)
                        for (int c = 0; c < OUT; c++) {
                            long row = ty * OUT + r, column = tx * OUT + c;
                            Lane *to = (Lane *)(y + at + p.channels * (
                                (image * p.height + row) * p.width + column));
                            to[0] = found.part[0][r][c] + more[0];
                            to[1] = found.part[1][r][c] + more[1];
                        }
                }
}

template <int OUT> static void tiles_out_back(const float *dy, float *dm, float *dbias, Picture p) {
    long down = p.height / OUT, across = p.width / OUT, tile = 0;
    long plane = p.images * down * across * p.channels;
    std::memset(dbias, 0, sizeof(float) * p.channels);
    for (long image = 0; image < p.images; image++)
        for (long ty = 0; ty < down; ty++)
            for (long tx = 0; tx < across; tx++, tile++) {
                const float *from[OUT][OUT];
                for (int r = 0; r < OUT; r++)
                    for (int c = 0; c < OUT; c++)
                        from[r][c] = dy + p.channels * (
                            (image * p.height + ty * OUT + r) * p.width + tx * OUT + c);
                for (long at = 0; at < p.channels; at += LINE) {
                    Block<OUT> pixels;
                    Block<OUT + 2> found;
                    pixels.read(from, at);
                    Lane *sums = (Lane *)(dbias + at);
                    for (int half = 0; half < 2; half++) {
                        for (int r = 0; r < OUT; r++)
                            for (int c = 0; c < OUT; c++) sums[half] += pixels.part[half][r][c];
                        change_back(Method<OUT>::output, pixels.part[half], found.part[half]);
                    }
                    found.write(dm + tile * p.channels + at, plane);
                }
            }
}

// Filters w [3][3][count] to planes u [(OUT + 2)^2][count].
template <int OUT> static void filters(const float *w, float *u, long count) {
    for (long at = 0; at < count; at += 8) {
        Lane taps[3][3], found[OUT + 2][OUT + 2];
        for (int k = 0; k < 9; k++) taps[k / 3][k % 3] = *(const Lane *)(w + k * count + at);
        change(Method<OUT>::filter, taps, found);
        for (int r = 0; r < OUT + 2; r++)
            for (int c = 0; c < OUT + 2; c++)
                *(Lane *)(u + (r * (OUT + 2) + c) * count + at) = found[r][c];
    }
}

template <int OUT> static void filters_back(const float *du, float *dw, long count) {
    for (long at = 0; at < count; at += 8) {
        Lane planes[OUT + 2][OUT + 2], found[3][3];
        for (int r = 0; r < OUT + 2; r++)
            for (int c = 0; c < OUT + 2; c++)
                planes[r][c] = *(const Lane *)(du + (r * (OUT + 2) + c) * count + at);
        change_back(Method<OUT>::filter, planes, found);
        for (int k = 0; k < 9; k++) *(Lane *)(dw + k * count + at) = found[k / 3][k % 3];
    }
}

// e^x by powers of two and Cephes' polynomial, for |x| < 87; compilers make lanes of it.
static inline float exponential(float x) {
    x = x < -87.f ? -87.f : x > 87.f ? 87.f : x;
    float power = std::rint(x * 1.44269504f);
    float rest = (x - power * .693359375f) + power * 2.12194440e-4f;
    float value = 1.9875691500e-4f;
    value = value * rest + 1.3981999507e-3f;
    value = value * rest + 8.3334519073e-3f;
    value = value * rest + 4.1665795894e-2f;
    value = value * rest + 1.6666665459e-1f;
    value = value * rest + 5.0000001201e-1f;
    value = value * rest * rest + rest + 1.f;
    int bits = ((int)power + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return value * scale;
}

static inline float sigmoid(float x) { return 1.f / (1.f + exponential(-x)); }

struct Norm {
    long images, pixels, channels, groups;
    float epsilon;
    long silu;
};

// Group norm and, where `silu` says so, SiLU: x, y [images][pixels][channels]; mean and inverse
// deviation [images][groups] are kept for the way back.
static void norm(const float *x, const float *weight, const float *bias, float *y, float *mean,
                 float *inverse, const Norm &n) {
    long of_group = n.channels / n.groups;
    float sums[CHANNELS_MAX], squares[CHANNELS_MAX], scale[CHANNELS_MAX], shift[CHANNELS_MAX];
    for (long image = 0; image < n.images; image++) {
        const float *in = x + image * n.pixels * n.channels;
        float *out = y + image * n.pixels * n.channels;
        std::memset(sums, 0, sizeof(float) * n.channels);
        std::memset(squares, 0, sizeof(float) * n.channels);
        for (long pixel = 0; pixel < n.pixels; pixel++) {
            const float *at = in + pixel * n.channels;
            for (long c = 0; c < n.channels; c++) {
                sums[c] += at[c];
                squares[c] += at[c] * at[c];
            }
        }
        for (long group = 0; group < n.groups; group++) {
            double sum = 0, square = 0, count = (double)n.pixels * of_group;
            for (long c = group * of_group; c < (group + 1) * of_group; c++) {
                sum += sums[c];
                square += squares[c];
            }
            double centre = sum / count, spread = square / count - centre * centre;
            float factor = 1 / std::sqrt((spread > 0 ? spread : 0) + n.epsilon);
            mean[image * n.groups + group] = centre;
            inverse[image * n.groups + group] = factor;
            for (long c = group * of_group; c < (group + 1) * of_group; c++) {
                scale[c] = weight[c] * factor;
                shift[c] = bias[c] - (float)centre * scale[c];
            }
        }
        for (long pixel = 0; pixel < n.pixels; pixel++) {
            const float *at = in + pixel * n.channels;
            float *to = out + pixel * n.channels;
            if (n.silu)
                for (long c = 0; c < n.channels; c++) {
                    float value = at[c] * scale[c] + shift[c];
                    to[c] = value * sigmoid(value);
                }
            else
                for (long c = 0; c < n.channels; c++) to[c] = at[c] * scale[c] + shift[c];
        }
    }
}

static void norm_back(const float *x, const float *weight, const float *bias, const float *mean,
                      const float *inverse, const float *dy, float *dx, float *dweight,
                      float *dbias, const Norm &n) {
    long of_group = n.channels / n.groups;
    float sums[CHANNELS_MAX], products[CHANNELS_MAX], scale[CHANNELS_MAX], shift[CHANNELS_MAX];
    float slope[CHANNELS_MAX];
    std::memset(dweight, 0, sizeof(float) * n.channels);
    std::memset(dbias, 0, sizeof(float) * n.channels);
    for (long image = 0; image < n.images; image++) {
        const float *in = x + image * n.pixels * n.channels;
        const float *given = dy + image * n.pixels * n.channels;
        float *out = dx + image * n.pixels * n.channels;
        for (long c = 0; c < n.channels; c++) {
            long group = image * n.groups + c / of_group;
            scale[c] = weight[c] * inverse[group];
            shift[c] = bias[c] - mean[group] * scale[c];
            sums[c] = products[c] = 0;
        }
        for (long pixel = 0; pixel < n.pixels; pixel++) {
            const float *at = in + pixel * n.channels, *from = given + pixel * n.channels;
            float *to = out + pixel * n.channels;
            for (long c = 0; c < n.channels; c++) {
                float value = at[c] * scale[c] + shift[c], part = from[c];
                if (n.silu) {
                    float share = sigmoid(value);
                    part *= share * (1 + value * (1 - share));
                }
                to[c] = part;
                sums[c] += part;
                products[c] += part * at[c];
            }
        }
        for (long group = 0; group < n.groups; group++) {
            float centre = mean[image * n.groups + group];
            float factor = inverse[image * n.groups + group];
            double sum = 0, product = 0, count = (double)n.pixels * of_group;
            for (long c = group * of_group; c < (group + 1) * of_group; c++) {
                float along = (products[c] - centre * sums[c]) * factor;
                dbias[c] += sums[c];
                dweight[c] += along;
                sum += weight[c] * sums[c];
                product += weight[c] * along;
            }
            float steep = -factor * factor * (product / count);
            for (long c = group * of_group; c < (group + 1) * of_group; c++) {
                slope[c] = steep;
                shift[c] = -factor * (sum / count) - steep * centre;
            }
        }
        for (long pixel = 0; pixel < n.pixels; pixel++) {
            const float *at = in + pixel * n.channels;
            float *to = out + pixel * n.channels;
            for (long c = 0; c < n.channels; c++)
                to[c] = to[c] * scale[c] + at[c] * slope[c] + shift[c];
        }
    }
}

// The share of a normal distribution below x, and its density there; the polynomial is 7.1.26 of
// Abramowitz and Stegun, whose error is below 1.5e-7.
static inline void normal(float x, float &below, float &density) {
    float bell = exponential(-.5f * x * x), t = 1.f / (1.f + .23164189f * std::fabs(x));
    float tail = 1.061405429f;
    tail = tail * t - 1.453152027f;
    tail = tail * t + 1.421413741f;
    tail = tail * t - .284496736f;
    tail = tail * t + .254829592f;
    tail = .5f * tail * t * bell;
    below = x < 0 ? tail : 1.f - tail;
    density = .39894228f * bell;
}

// x [rows][2][width] to y [rows][width]: the first half times the GELU of the second.
static void gated(const float *x, float *y, long rows, long width) {
    for (long row = 0; row < rows; row++) {
        const float *value = x + row * 2 * width, *gate = value + width;
        float *to = y + row * width;
        for (long c = 0; c < width; c++) {
            float below, density;
            normal(gate[c], below, density);
            to[c] = value[c] * gate[c] * below;
        }
    }
}

static void gated_back(const float *x, const float *dy, float *dx, long rows, long width) {
    for (long row = 0; row < rows; row++) {
        const float *value = x + row * 2 * width, *gate = value + width, *from = dy + row * width;
        float *to = dx + row * 2 * width;
        for (long c = 0; c < width; c++) {
            float below, density;
            normal(gate[c], below, density);
            to[c] = from[c] * gate[c] * below;
            to[width + c] = from[c] * value[c] * (below + gate[c] * density);
        }
    }
}

// c [ROWS][8 LANES] = sum over k of a[r][k step] * b[k][8 LANES].
template <int ROWS, int LANES>
static inline __attribute__((always_inline)) void product(
        const float *const (&a)[ROWS], long step, const float *b, long b_row, long depth,
        float *const (&c)[ROWS]) {
    Lane sums[ROWS][LANES] = {};
    for (long k = 0; k < depth; k++)
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int lane = 0; lane < LANES; lane++)
                sums[r][lane] += a[r][k * step] * *(const Lane *)(b + k * b_row + 8 * lane);
    for (int r = 0; r < ROWS; r++)
        for (int lane = 0; lane < LANES; lane++) *(Lane *)(c[r] + 8 * lane) = sums[r][lane];
}

const int ROWS = 4;  // of a matrix that are worked on together

// Attention of one head of one image: q [n][D], k and v [m][D], whose rows lie `row` apart.
template <int D> struct Head {
    long n, m, row, wide;  // `wide`: m rounded up to 16
    const float *q, *k, *v;
    float *turned;  // [D][wide]: k', scaled, or v'

    static void turn(const float *from, float *to, long m, long row, long wide, float scale) {
        for (long j = 0; j < m; j++)
            for (int d = 0; d < D; d++) to[d * wide + j] = from[j * row + d] * scale;
    }

    // Rows from `first` on of [n][D] times `turned`, to [ROWS][wide].
    void across(const float *from, long first, const float *turned, float *to) const {
        const float *a[ROWS];
        for (int r = 0; r < ROWS; r++) a[r] = from + (first + r < n ? first + r : n - 1) * row;
        for (long j = 0; j < wide; j += 16) {
            float *const c[ROWS] = {to + j, to + wide + j, to + 2 * wide + j, to + 3 * wide + j};
            product<ROWS, 2>(a, 1, turned + j, wide, D, c);
        }
    }

    // What of v each of ROWS rows takes: [ROWS][wide], each row of sum 1.
    void weigh(long first, const float *turned, float *to) const {
        across(q, first, turned, to);
        for (int r = 0; r < ROWS; r++) {
            float *at = to + r * wide, most = at[0], sum = 0;
            for (long j = 1; j < m; j++) most = at[j] > most ? at[j] : most;
            for (long j = 0; j < m; j++) {
                at[j] = exponential(at[j] - most);
                sum += at[j];
            }
            float part = 1 / sum;
            for (long j = 0; j < m; j++) at[j] *= part;
            for (long j = m; j < wide; j++) at[j] = 0;
        }
    }

    // ROWS rows of `part`, `step` between their columns, times b [depth][D]; only rows before `end`.
    void gather(const float *part, long apart, long step, const float *b, long depth, float *to,
                long first, long end) const {
        float found[ROWS][D];
        const float *const a[ROWS] = {part, part + apart, part + 2 * apart, part + 3 * apart};
        float *const c[ROWS] = {found[0], found[1], found[2], found[3]};
        product<ROWS, D / 8>(a, step, b, row, depth, c);
        for (int r = 0; r < ROWS && first + r < end; r++)
            std::memcpy(to + (first + r) * row, found[r], sizeof found[r]);
    }
};

struct Sizes {
    long images, heads, n, m;
};

// q [images][n][heads][D], k and v [images][m][heads][D], o as q.
template <int D>
static void attend(const float *q, const float *k, const float *v, float *o, const Sizes &s) {
    long row = s.heads * D, wide = (s.m + 15) / 16 * 16;
    std::vector<float> turned(D * wide), part(ROWS * wide);
    for (long image = 0; image < s.images; image++)
        for (long head = 0; head < s.heads; head++) {
            long mine = image * s.n * row + head * D, given = image * s.m * row + head * D;
            Head<D> h = {s.n, s.m, row, wide, q + mine, k + given, v + given, turned.data()};
            h.turn(h.k, h.turned, s.m, row, wide, 1 / std::sqrt((float)D));
            for (long first = 0; first < s.n; first += ROWS) {
                h.weigh(first, h.turned, part.data());
                h.gather(part.data(), wide, 1, h.v, s.m, o + mine, first, s.n);
            }
        }
}

template <int D>
static void attend_back(const float *q, const float *k, const float *v, const float *given_o,
                        float *dq, float *dk, float *dv, const Sizes &s) {
    long row = s.heads * D, wide = (s.m + 15) / 16 * 16, high = (s.n + ROWS - 1) / ROWS * ROWS;
    std::vector<float> turned_k(D * wide), turned_v(D * wide);
    std::vector<float> part(high * wide), slope(high * wide);
    float scale = 1 / std::sqrt((float)D);
    for (long image = 0; image < s.images; image++)
        for (long head = 0; head < s.heads; head++) {
            long mine = image * s.n * row + head * D, given = image * s.m * row + head * D;
            Head<D> h = {s.n, s.m, row, wide, q + mine, k + given, v + given, nullptr};
            h.turn(h.k, turned_k.data(), s.m, row, wide, scale);
            h.turn(h.v, turned_v.data(), s.m, row, wide, 1);
            for (long first = 0; first < s.n; first += ROWS) {
                float *shares = part.data() + first * wide, *d = slope.data() + first * wide;
                h.weigh(first, turned_k.data(), shares);
                h.across(given_o + mine, first, turned_v.data(), d);
                for (int r = 0; r < ROWS; r++) {
                    float mean = 0;
                    for (long j = 0; j < s.m; j++) mean += shares[r * wide + j] * d[r * wide + j];
                    for (long j = 0; j < wide; j++)
                        d[r * wide + j] = shares[r * wide + j] * (d[r * wide + j] - mean) * scale;
                }
                h.gather(d, wide, 1, h.k, s.m, dq + mine, first, s.n);
            }
            for (long j = 0; j < s.m; j += ROWS) {
                h.gather(part.data() + j, 1, wide, given_o + mine, s.n, dv + given, j, s.m);
                h.gather(slope.data() + j, 1, wide, h.q, s.n, dk + given, j, s.m);
            }
        }
}

#define BOTH(name, ...) if (out == 4) name<4>(__VA_ARGS__); else name<2>(__VA_ARGS__)

extern "C" {
void smalti_tiles_in(long out, const float *x, float *v, long n, long h, long w, long c) {
    BOTH(tiles_in, x, v, {n, h, w, c});
}
void smalti_tiles_in_back(long out, const float *dv, float *dx, long n, long h, long w, long c) {
    BOTH(tiles_in_back, dv, dx, {n, h, w, c});
}
void smalti_tiles_out(long out, const float *m, const float *bias, float *y, long n, long h, long w,
                      long c) {
    BOTH(tiles_out, m, bias, y, {n, h, w, c});
}
void smalti_tiles_out_back(long out, const float *dy, float *dm, float *dbias, long n, long h,
                           long w, long c) {
    BOTH(tiles_out_back, dy, dm, dbias, {n, h, w, c});
}
void smalti_filters(long out, const float *w, float *u, long count) { BOTH(filters, w, u, count); }
void smalti_filters_back(long out, const float *du, float *dw, long count) {
    BOTH(filters_back, du, dw, count);
}
void smalti_gated(const float *x, float *y, long rows, long width) { gated(x, y, rows, width); }
void smalti_gated_back(const float *x, const float *dy, float *dx, long rows, long width) {
    gated_back(x, dy, dx, rows, width);
}
#define OF_HEADS(name, ...) \
    switch (d) { \
    case 8: name<8>(__VA_ARGS__); break; \
    case 16: name<16>(__VA_ARGS__); break; \
    case 24: name<24>(__VA_ARGS__); break; \
    case 32: name<32>(__VA_ARGS__); break; \
    }
void smalti_attend(long d, const float *q, const float *k, const float *v, float *o, long images,
                   long heads, long n, long m) {
    OF_HEADS(attend, q, k, v, o, {images, heads, n, m})
}
void smalti_attend_back(long d, const float *q, const float *k, const float *v, const float *given,
                        float *dq, float *dk, float *dv, long images, long heads, long n, long m) {
    OF_HEADS(attend_back, q, k, v, given, dq, dk, dv, {images, heads, n, m})
}
void smalti_norm(const float *x, const float *weight, const float *bias, float *y, float *mean,
                 float *inverse, long images, long pixels, long channels, long groups,
                 float epsilon, long silu) {
    norm(x, weight, bias, y, mean, inverse, {images, pixels, channels, groups, epsilon, silu});
}
void smalti_norm_back(const float *x, const float *weight, const float *bias, const float *mean,
                      const float *inverse, const float *dy, float *dx, float *dweight,
                      float *dbias, long images, long pixels, long channels, long groups,
                      float epsilon, long silu) {
    norm_back(x, weight, bias, mean, inverse, dy, dx, dweight, dbias,
              {images, pixels, channels, groups, epsilon, silu});
}
}
