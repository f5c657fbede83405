// A stand-in for cuBLASLt on host memory: it checks what it is given and computes products element by element.
// Column-major, as the library itself: D = epilogue(op(A) op(B)), a vector for the rows of D.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace {
enum { OK = 0, NOT_INITIALIZED = 1, INVALID = 7, UNSUPPORTED = 15 };
enum { COMPUTE_32F = 68, R_32F = 0, R_16F = 2, R_16BF = 14 };
enum { TRANSA = 3, TRANSB = 4, EPILOGUE = 7, BIAS_POINTER = 8, AUX_POINTER = 11, AUX_LD = 12 };
enum { NONE = 1, BIAS = 4, GELU_AUX_BIAS = 164, DGELU = 192 };
enum { MAX_WORKSPACE = 1, REDUCTIONS = 3, ALIGNMENT_A = 5, ALIGNMENT_D = 8 };
const uint32_t COMPUTE_TYPE = 2;
const uint64_t MAGIC = 0x1a317aUL;

struct Handle { uint64_t magic; };
struct Desc { int32_t transa = 0, transb = 0; uint32_t epilogue = 1; void *vector = nullptr, *aux = nullptr; int64_t aux_ld = 0; };
struct Layout { int type; uint64_t rows, cols; int64_t ld; };
struct Preference { uint64_t workspace = 0; uint32_t reductions = 7; uint32_t alignment[4] = {256, 256, 256, 256}; };
struct Algo { uint64_t data[8]; };  // what it is for, the alignment it rests on, its number
struct Result { Algo algo; size_t workspace; int state; float waves; int reserved[4]; };

int matmuls = 0, fails = 0, last = -1;
size_t wanted = 4096;

float load(const void *p, int64_t i, int type) {
  uint16_t bits;
  std::memcpy(&bits, static_cast<const char *>(p) + 2 * i, 2);
  if (type == R_16BF) {
    uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }
  int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  float value = exponent == 0 ? std::ldexp(float(fraction), -24)
              : exponent == 31 ? (fraction ? NAN : INFINITY) : std::ldexp(float(1024 + fraction), exponent - 25);
  return bits & 0x8000 ? -value : value;
}

void store(void *p, int64_t i, int type, float value) {
  uint16_t bits;
  uint32_t wide;
  std::memcpy(&wide, &value, 4);
  if (type == R_16BF) {
    bits = uint16_t((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
  } else {
    uint16_t sign = uint16_t((wide >> 16) & 0x8000);
    float size = std::fabs(value);
    if (size >= 65520.f) bits = 0x7c00;
    else if (size < 0x1p-14f) bits = uint16_t(std::nearbyint(std::ldexp(size, 24)));
    else {
      int exponent;
      float fraction = std::frexp(size, &exponent);
      bits = uint16_t((exponent + 14) * 1024 + int(std::nearbyint(std::ldexp(fraction, 11))) - 1024);
    }
    bits |= sign;
  }
  std::memcpy(static_cast<char *>(p) + 2 * i, &bits, 2);
}

float gelu(float x) { return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x))); }
float slope(float x) {
  float t = std::tanh(0.7978845608f * (x + 0.044715f * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

bool fits(const Desc &o, const Layout &a, const Layout &b, const Layout &d) {
  uint64_t m = o.transa ? a.cols : a.rows, k = o.transa ? a.rows : a.cols;
  uint64_t k2 = o.transb ? b.cols : b.rows, n = o.transb ? b.rows : b.cols;
  if (m != d.rows || n != d.cols || k != k2 || a.type != b.type || a.type != d.type) return false;
  if (d.type != R_16BF && d.type != R_16F) return false;
  for (const Layout *l : {&a, &b, &d}) if (l->ld < int64_t(l->rows)) return false;
  if ((o.epilogue == BIAS || o.epilogue == GELU_AUX_BIAS) && !o.vector) return false;
  if (o.epilogue == NONE || o.epilogue == BIAS) return !o.aux;
  if (o.epilogue != GELU_AUX_BIAS && o.epilogue != DGELU) return false;
  return o.aux && o.aux_ld % 8 == 0 && o.aux_ld >= int64_t(d.rows);
}
}  // namespace

extern "C" {
size_t cublasLtGetVersion() { return 130100; }
int fake_matmuls() { return matmuls; }
int fake_algorithm() { return last; }
void fake_fail(int what) { fails = what; }  // 1: no handle, 2: no algorithm, 3: products
void fake_workspace(size_t bytes) { wanted = bytes; }

int cublasLtCreate(Handle **handle) {
  if (fails == 1) return NOT_INITIALIZED;
  *handle = new Handle{MAGIC};
  return OK;
}
int cublasLtMatmulDescCreate(Desc **desc, int compute, int scale) {
  if (compute != COMPUTE_32F || scale != R_32F) return INVALID;
  *desc = new Desc;
  return OK;
}
int cublasLtMatmulDescDestroy(Desc *desc) { delete desc; return OK; }
int cublasLtMatmulDescSetAttribute(Desc *desc, int attribute, const void *value, size_t size) {
  struct { int attribute; size_t size; void *into; } known[] = {
      {TRANSA, 4, &desc->transa}, {TRANSB, 4, &desc->transb}, {EPILOGUE, 4, &desc->epilogue},
      {BIAS_POINTER, 8, &desc->vector}, {AUX_POINTER, 8, &desc->aux}, {AUX_LD, 8, &desc->aux_ld}};
  for (auto &k : known)
    if (k.attribute == attribute && k.size == size) return std::memcpy(k.into, value, size), OK;
  return INVALID;
}
int cublasLtMatrixLayoutCreate(Layout **layout, int type, uint64_t rows, uint64_t cols, int64_t ld) {
  *layout = new Layout{type, rows, cols, ld};
  return OK;
}
int cublasLtMatrixLayoutDestroy(Layout *layout) { delete layout; return OK; }
int cublasLtMatmulPreferenceCreate(Preference **preference) { *preference = new Preference; return OK; }
int cublasLtMatmulPreferenceDestroy(Preference *preference) { delete preference; return OK; }
int cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value, size_t size) {
  if (attribute == MAX_WORKSPACE && size == 8) return std::memcpy(&preference->workspace, value, 8), OK;
  if (attribute == REDUCTIONS && size == 4) return std::memcpy(&preference->reductions, value, 4), OK;
  if (attribute < ALIGNMENT_A || attribute > ALIGNMENT_D || size != 4) return INVALID;
  std::memcpy(&preference->alignment[attribute - ALIGNMENT_A], value, 4);
  return OK;
}
int cublasLtMatmulAlgoGetHeuristic(Handle *handle, Desc *desc, Layout *a, Layout *b, Layout *c, Layout *d,
                                   Preference *preference, int requested, Result *results, int *found) {
  *found = 0;
  if (handle->magic != MAGIC || requested <= 0) return INVALID;
  if (fails == 2 || !fits(*desc, *a, *b, *d) || c != d) return UNSUPPORTED;
  if (preference->workspace < wanted || preference->reductions != COMPUTE_TYPE) return UNSUPPORTED;
  std::memset(results, 0, sizeof(Result) * requested);
  for (uint32_t other : preference->alignment) if (other != preference->alignment[0]) return INVALID;
  for (; *found < 3 && *found < requested; ++*found) {
    results[*found].state = *found ? OK : INVALID;  // the first of several need not be usable
    results[*found].workspace = wanted;
    results[*found].algo = {{MAGIC + desc->epilogue, preference->alignment[0], uint64_t(*found)}};
  }
  return OK;
}
int cublasLtMatmul(Handle *handle, Desc *desc, const float *alpha, const void *A, Layout *a, const void *B, Layout *b,
                   const float *beta, const void *C, Layout *c, void *D, Layout *d, const Algo *algo, void *workspace,
                   size_t bytes, void *) {
  if (fails == 3) return UNSUPPORTED;
  if (handle->magic != MAGIC || *alpha != 1 || *beta != 0 || C != D || c != d || !fits(*desc, *a, *b, *d)) return INVALID;
  if (!algo || algo->data[0] != MAGIC + desc->epilogue || bytes < wanted || (wanted && !workspace)) return INVALID;
  for (const void *p : {A, B, C, (const void *)desc->aux}) if (uintptr_t(p) % algo->data[1]) return INVALID;
  if (wanted) std::memset(workspace, 0x5a, wanted);
  ++matmuls;
  last = int(algo->data[2]);
  int64_t k = int64_t(desc->transa ? a->rows : a->cols);
  for (int64_t j = 0; j < int64_t(d->cols); ++j)
    for (int64_t i = 0; i < int64_t(d->rows); ++i) {
      float sum = 0;
      for (int64_t p = 0; p < k; ++p)
        sum += load(A, desc->transa ? p + i * a->ld : i + p * a->ld, a->type) *
               load(B, desc->transb ? j + p * b->ld : p + j * b->ld, b->type);
      if (desc->epilogue == BIAS || desc->epilogue == GELU_AUX_BIAS) sum += load(desc->vector, i, d->type);
      if (desc->epilogue == GELU_AUX_BIAS) {
        store(desc->aux, i + j * desc->aux_ld, d->type, sum);
        sum = gelu(sum);
      } else if (desc->epilogue == DGELU) {
        sum *= slope(load(desc->aux, i + j * desc->aux_ld, d->type));
      }
      store(D, i + j * d->ld, d->type, sum);
    }
  return OK;
}
}
