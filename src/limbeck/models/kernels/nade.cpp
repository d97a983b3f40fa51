// NADE's activations, their pull-back and its sampler on a CPU, without the tensor n × I × J.
//
// The activations a of a row change only behind inputs that are not zero, so that a row of k such
// inputs has k + 1 states h = σ(a). A state is computed once and serves all positions up to the
// next change. Hidden units are cut into tiles that live in registers; parameters are packed tile
// by tile, padded with zeros, so that a tile stays in cache while all rows pass over it.
//
// `period` is 1 for two states. For q states the inputs are one-hot codes, q a variable: then a
// changes behind the last code of a variable, and `period` is q.
//
// Nothing is allocated here: the caller hands over the room that is needed.

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num() { return 0; }
#endif

namespace {

typedef int64_t N;
constexpr int VECTORS = 4;  // of 64 bytes, in a tile

template <typename R> struct Numbers;

template <> struct Numbers<float> {
  typedef float V __attribute__((vector_size(64)));
  typedef float Half __attribute__((vector_size(32)));
  typedef float Quarter __attribute__((vector_size(16)));
  typedef uint32_t Bits __attribute__((vector_size(64)));
  static constexpr int lanes = 16, mantissa = 23, terms = 8;
  static constexpr float round = 12582912.f, far = 87.f;
  static constexpr float log2e = 1.44269504f, ln2 = 0.693359375f, rest = -2.12194440e-4f;
};

template <> struct Numbers<double> {
  typedef double V __attribute__((vector_size(64)));
  typedef double Half __attribute__((vector_size(32)));
  typedef double Quarter __attribute__((vector_size(16)));
  typedef uint64_t Bits __attribute__((vector_size(64)));
  static constexpr int lanes = 8, mantissa = 52, terms = 14;
  static constexpr double round = 6755399441055744., far = 708.;
  static constexpr double log2e = 1.4426950408889634, ln2 = 6.93145751953125e-1,
                          rest = 1.42860682030941723212e-6;
};

template <typename R> using Vector = typename Numbers<R>::V;
template <typename R> constexpr N width() { return VECTORS * Numbers<R>::lanes; }

constexpr double FACTORIALS[] = {1., 1., 2., 6., 24., 120., 720., 5040., 40320., 362880., 3628800.,
                                 39916800., 479001600., 6227020800.};

// exp(y) = 2^m exp(r) with |r| ≤ ½ log 2, where a Taylor series is exact to the last digit
template <typename R> inline Vector<R> sigmoid(Vector<R> a) {
  typedef Numbers<R> C;
  typedef typename C::Bits Bits;
  const Vector<R> far = Vector<R>{} + C::far;
  Vector<R> y = -a;
  y = y > far ? far : y;
  y = y < -far ? -far : y;
  const Vector<R> rounded = y * C::log2e + C::round, m = rounded - C::round;
  const Vector<R> r = (y - m * C::ln2) - m * C::rest;
  Vector<R> p = Vector<R>{} + R(1 / FACTORIALS[C::terms - 1]);
  for (int k = C::terms - 2; k >= 0; k--) p = p * r + R(1 / FACTORIALS[k]);
  const Bits power = (Bits)p + ((Bits)rounded << C::mantissa);
  return a != a ? a : R(1) / (R(1) + (Vector<R>)power);
}

template <typename R> inline R total(const Vector<R> &v) {
  typename Numbers<R>::Half halves[2];
  memcpy(halves, &v, sizeof(v));
  const auto half = halves[0] + halves[1];
  typename Numbers<R>::Quarter quarters[2];
  memcpy(quarters, &half, sizeof(half));
  const auto quarter = quarters[0] + quarters[1];
  R sum = 0;
  for (int l = 0; l < Numbers<R>::lanes / 4; l++) sum += quarter[l];
  return sum;
}

template <typename R> struct Tile {
  Vector<R> v[VECTORS];
};

template <typename R> inline R dot(const Tile<R> &one, const Tile<R> &other) {
  Vector<R> sum = one.v[0] * other.v[0];
  for (int k = 1; k < VECTORS; k++) sum += one.v[k] * other.v[k];
  return total<R>(sum);
}

template <typename R> inline void add(Tile<R> &to, R factor, const Tile<R> &tile) {
  for (int k = 0; k < VECTORS; k++) to.v[k] += factor * tile.v[k];
}

template <typename R> inline void sigmoid(Tile<R> &h, const Tile<R> &a) {
  for (int k = 0; k < VECTORS; k++) h.v[k] = sigmoid<R>(a.v[k]);
}

// Rows (I, J) to tiles (I, width) of the hidden units from `tile` on, and back
template <typename R> void pack(const R *from, Tile<R> *to, N I, N J, N tile) {
  const N start = tile * width<R>(), count = J - start < width<R>() ? J - start : width<R>();
  for (N i = 0; i < I; i++) {
    R *place = (R *)(to + i);
    memcpy(place, from + i * J + start, count * sizeof(R));
    memset(place + count, 0, (width<R>() - count) * sizeof(R));
  }
}

template <typename R> void unpack(const Tile<R> *from, N apart, N parts, R *to, N I, N J, N tile) {
  const N start = tile * width<R>(), count = J - start < width<R>() ? J - start : width<R>();
  for (N i = 0; i < I; i++) {
    Tile<R> sum = from[i];
    for (N p = 1; p < parts; p++) add<R>(sum, 1, from[p * apart + i]);
    memcpy(to + i * J + start, &sum, count * sizeof(R));
  }
}

// Where the activations of a row change: behind position stop[s] by the weights of input row[s]
struct Changes {
  int32_t *row, *stop;
  N count;
};

template <typename R> N changes(const R *x, Changes at, N I, N period) {
  N count = 0;
  for (N i = 0; i < I - period; i++) {
    at.row[count] = (int32_t)i;
    count += x[i] != 0;
  }
  for (N s = 0; s < count; s++) {
    at.stop[s] = (int32_t)(period == 1 ? at.row[s] : at.row[s] - at.row[s] % period + period - 1);
  }
  at.stop[count] = (int32_t)(I - 1);
  return count;
}

template <typename R> struct Model {
  N n, I, J, period, tiles;
  const R *x, *w, *c, *u;
  Tile<R> *W, *U, *C;  // (tiles, I), (tiles, I), (tiles,)

  void prepare(N tile) const {
    pack(w, W + tile * I, I, J, tile);
    pack(u, U + tile * I, I, J, tile);
    pack(c, C + tile, 1, J, tile);
  }
};

template <typename R>
Model<R> model(N n, N I, N J, N period, const R *x, const R *w, const R *c, const R *u, R *room) {
  const N tiles = (J + width<R>() - 1) / width<R>();
  Tile<R> *W = (Tile<R> *)room;
  return {n, I, J, period, tiles, x, w, c, u, W, W + tiles * I, W + 2 * tiles * I};
}

// All states of a row in one tile of hidden units, H (changes + 1,)
template <typename R>
void states(const Model<R> &net, const Changes &at, const R *x, N tile, Tile<R> *H) {
  Tile<R> a = net.C[tile];
  for (N s = 0; s <= at.count; s++) {
    sigmoid(H[s], a);
    if (s < at.count) add(a, x[at.row[s]], net.W[tile * net.I + at.row[s]]);
  }
}

// z (n, I) without the biases. Lists: (threads, group, 2 I + 1)
template <typename R> void logits(const Model<R> &net, R *z, int32_t *lists, N group, N threads) {
  const N groups = (net.n + group - 1) / group, I = net.I;
#pragma omp parallel num_threads(threads)
  {
    int32_t *mine = lists + omp_get_thread_num() * group * (2 * I + 1);
#pragma omp for
    for (N tile = 0; tile < net.tiles; tile++) net.prepare(tile);
#pragma omp for schedule(dynamic)
    for (N q = 0; q < groups; q++) {
      const N from = q * group, to = from + group < net.n ? from + group : net.n;
      for (N tile = 0; tile < net.tiles; tile++) {
        const Tile<R> *W = net.W + tile * I, *U = net.U + tile * I;
        for (N r = from; r < to; r++) {
          int32_t *kept = mine + (r - from) * (2 * I + 1);
          Changes at = {kept + 1, kept + 1 + I, 0};
          const R *x = net.x + r * I;
          R *out = z + r * I;
          if (tile == 0) kept[0] = (int32_t)changes(x, at, I, net.period);
          at.count = kept[0];
          Tile<R> a = net.C[tile], h;
          for (N s = 0, i = 0; s <= at.count; s++) {
            sigmoid(h, a);
            if (tile == 0) {
              for (; i <= at.stop[s]; i++) out[i] = dot(h, U[i]);
            } else {
              for (; i <= at.stop[s]; i++) out[i] += dot(h, U[i]);
            }
            if (s < at.count) add(a, x[at.row[s]], W[at.row[s]]);
          }
        }
      }
    }
  }
}

// The pull-back of d (n, I): sums over rows. Room: tasks × (2 I + 1) + threads × I tiles, where
// tasks = tiles × parts; lists (chunk, 2 I + 1)
template <typename R>
void pull(const Model<R> &net, const R *d, R *gw, R *gc, R *gu, Tile<R> *room, int32_t *lists,
          N chunk, N parts, N threads) {
  const N I = net.I, tasks = net.tiles * parts, each = 2 * I + 1;
#pragma omp parallel num_threads(threads)
  {
    Tile<R> *H = room + tasks * each + omp_get_thread_num() * I;
#pragma omp for
    for (N tile = 0; tile < net.tiles; tile++) net.prepare(tile);
#pragma omp for
    for (N q = 0; q < tasks; q++) memset((void *)(room + q * each), 0, each * sizeof(Tile<R>));
    for (N first = 0; first < net.n; first += chunk) {
      const N m = net.n - first < chunk ? net.n - first : chunk;
#pragma omp for
      for (N r = 0; r < m; r++) {
        int32_t *kept = lists + r * (2 * I + 1);
        const Changes at = {kept + 1, kept + 1 + I, 0};
        kept[0] = (int32_t)changes(net.x + (first + r) * I, at, I, net.period);
      }
#pragma omp for schedule(dynamic)
      for (N q = 0; q < tasks; q++) {
        const N tile = q / parts, part = q % parts;
        const Tile<R> *U = net.U + tile * I;
        Tile<R> *GU = room + q * each, *GW = GU + I, *GC = GW + I;
        for (N r = m * part / parts; r < m * (part + 1) / parts; r++) {
          int32_t *kept = lists + r * (2 * I + 1);
          const Changes at = {kept + 1, kept + 1 + I, kept[0]};
          const R *x = net.x + (first + r) * I, *dr = d + (first + r) * I;
          states(net, at, x, tile, H);
          Tile<R> S = {};
          for (N s = at.count; s >= 0; s--) {
            const Tile<R> h = H[s];
            Tile<R> e = {};
            for (N i = s ? at.stop[s - 1] + 1 : 0; i <= at.stop[s]; i++) {
              add(GU[i], dr[i], h);
              add(e, dr[i], U[i]);
            }
            for (int k = 0; k < VECTORS; k++) S.v[k] += e.v[k] * h.v[k] * (R(1) - h.v[k]);
            if (s) add(GW[at.row[s - 1]], x[at.row[s - 1]], S);
          }
          add<R>(*GC, 1, S);
        }
      }
    }
#pragma omp for
    for (N tile = 0; tile < net.tiles; tile++) {
      const Tile<R> *GU = room + tile * parts * each;
      unpack(GU, each, parts, gu, I, net.J, tile);
      unpack(GU + I, each, parts, gw, I, net.J, tile);
      unpack(GU + 2 * I, each, parts, gc, 1, net.J, tile);
    }
  }
}

// The pull-back's part on the inputs, (n, I), that goes through the activations.
// Room: threads × I tiles; lists: (threads, 2 I + 1)
template <typename R>
void pull_inputs(const Model<R> &net, const R *d, R *gx, Tile<R> *room, int32_t *lists, N threads) {
  const N I = net.I, period = net.period;
#pragma omp parallel num_threads(threads)
  {
    Tile<R> *H = room + omp_get_thread_num() * I;
    int32_t *kept = lists + omp_get_thread_num() * (2 * I + 1);
    Changes at = {kept + 1, kept + 1 + I, 0};
#pragma omp for
    for (N tile = 0; tile < net.tiles; tile++) net.prepare(tile);
#pragma omp for schedule(dynamic)
    for (N r = 0; r < net.n; r++) {
      const R *x = net.x + r * I, *dr = d + r * I;
      R *out = gx + r * I;
      at.count = changes(x, at, I, period);
      memset(out, 0, I * sizeof(R));
      for (N tile = 0; tile < net.tiles; tile++) {
        const Tile<R> *W = net.W + tile * I, *U = net.U + tile * I;
        states(net, at, x, tile, H);
        Tile<R> S = {};
        for (N s = at.count; s >= 0; s--) {
          const Tile<R> h = H[s];
          for (N last = at.stop[s], start = s ? at.stop[s - 1] + 1 : 0; last >= start;) {
            for (N i = last - period + 1; i <= last; i++) out[i] += dot(S, W[i]);
            Tile<R> e = {};
            for (N i = last - period + 1; i <= last; i++) add(e, dr[i], U[i]);
            for (int k = 0; k < VECTORS; k++) S.v[k] += e.v[k] * h.v[k] * (R(1) - h.v[k]);
            last -= period;
          }
        }
      }
    }
  }
}

constexpr N ROWS = 8;  // that are sampled in step, so that a row of u is fetched once for them

// x (n, I) = uniforms < p, and p; what enters the activations is x − m, with m (I,) or none.
// Room: threads × tiles × (2 ROWS + 2) tiles
template <typename R>
void sample(N n, N I, N J, const R *uniforms, const R *w, const R *c, const R *u, const R *b,
            const R *m, R *x, R *p, Tile<R> *room, N threads) {
  const N tiles = (J + width<R>() - 1) / width<R>(), groups = (n + ROWS - 1) / ROWS;
#pragma omp parallel num_threads(threads)
  {
    Tile<R> *A = room + omp_get_thread_num() * tiles * (2 * ROWS + 2);
    Tile<R> *H = A + ROWS * tiles, *U = H + ROWS * tiles, *W = U + tiles;
    memset((void *)U, 0, 2 * tiles * sizeof(Tile<R>));
#pragma omp for schedule(dynamic)
    for (N q = 0; q < groups; q++) {
      const N first = q * ROWS, rows = n - first < ROWS ? n - first : ROWS;
      memcpy((void *)U, c, J * sizeof(R));
      for (N r = 0; r < rows; r++) {
        for (N t = 0; t < tiles; t++) {
          A[r * tiles + t] = U[t];
          sigmoid(H[r * tiles + t], U[t]);
        }
      }
      for (N i = 0; i < I; i++) {
        memcpy((void *)U, u + i * J, J * sizeof(R));
        bool packed = false;
        for (N r = 0; r < rows; r++) {
          Tile<R> *a = A + r * tiles, *h = H + r * tiles;
          Tile<R> sums = {};
          for (N t = 0; t < tiles; t++) {
            for (int k = 0; k < VECTORS; k++) sums.v[k] += h[t].v[k] * U[t].v[k];
          }
          Vector<R> sum = sums.v[0];
          for (int k = 1; k < VECTORS; k++) sum += sums.v[k];
          const R z = total<R>(sum) + b[i];
          const R probability = 1 / (1 + std::exp(-z));
          const N place = (first + r) * I + i;
          p[place] = probability;
          x[place] = uniforms[place] < probability;
          const R y = m ? x[place] - m[i] : x[place];
          if (y == 0 || i == I - 1) continue;
          if (!packed) memcpy((void *)W, w + i * J, J * sizeof(R));
          packed = true;
          for (N t = 0; t < tiles; t++) {
            add<R>(a[t], y, W[t]);
            sigmoid(h[t], a[t]);
          }
        }
      }
    }
  }
}

}  // namespace

#define EXPORT(R)                                                                                 \
  N nade_width_##R() { return width<R>(); }                                                       \
  void nade_logits_##R(N n, N I, N J, N period, const R *x, const R *w, const R *c, const R *u,   \
                       R *packed, R *z, int32_t *lists, N group, N threads) {                     \
    logits(model(n, I, J, period, x, w, c, u, packed), z, lists, group, threads);                 \
  }                                                                                               \
  void nade_pull_##R(N n, N I, N J, N period, const R *x, const R *w, const R *c, const R *u,     \
                     R *packed, const R *d, R *gw, R *gc, R *gu, R *room, int32_t *lists,         \
                     N chunk, N parts, N threads) {                                               \
    pull(model(n, I, J, period, x, w, c, u, packed), d, gw, gc, gu, (Tile<R> *)room, lists,       \
         chunk, parts, threads);                                                                  \
  }                                                                                               \
  void nade_pull_inputs_##R(N n, N I, N J, N period, const R *x, const R *w, const R *c,          \
                            const R *u, R *packed, const R *d, R *gx, R *room, int32_t *lists,    \
                            N threads) {                                                          \
    pull_inputs(model(n, I, J, period, x, w, c, u, packed), d, gx, (Tile<R> *)room, lists,        \
                threads);                                                                         \
  }                                                                                               \
  void nade_sample_##R(N n, N I, N J, const R *uniforms, const R *w, const R *c, const R *u,      \
                       const R *b, const R *m, R *x, R *p, R *room, N threads) {                  \
    sample(n, I, J, uniforms, w, c, u, b, m, x, p, (Tile<R> *)room, threads);                     \
  }

extern "C" {
EXPORT(float)
EXPORT(double)
}
