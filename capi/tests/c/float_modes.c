/* Rank 1 rounds towards zero and, with SSE, flushes subnormal numbers: all ranks get the bits that a rank in
 * the standard mode computes, and rank 1 keeps its mode. */
#include "check.h"
#include <fenv.h>
#ifdef __SSE__
#include <xmmintrin.h>
#define FLUSHING 0x8040u
#endif

#define N 600

static int is_other_mode(void)
{
#ifdef __SSE__
    if ((_mm_getcsr() & FLUSHING) != FLUSHING)
        return 0;
#endif
    return fegetround() == FE_TOWARDZERO;
}

static void set_other_mode(void)
{
    CHECK(fesetround(FE_TOWARDZERO) == 0);
#ifdef __SSE__
    _mm_setcsr(_mm_getcsr() | FLUSHING);
#endif
}

/* Only moves bits, because this thread's own arithmetic may be flushed. */
static void fill(float *values, int32_t rank, uint32_t exponent)
{
    size_t i;

    for (i = 0; i < N; i++) {
        uint32_t bits = (uint32_t)(number(7, rank, i, 0x3fffff) + 0x400000) | exponent << 23;
        memcpy(&values[i], &bits, sizeof bits);
    }
}

/* Every rank has the bits of rank 0, which are not all zero. */
static void check_same(brv_group *group, const float *values)
{
    int32_t rank, size = brv_group_size(group);
    uint32_t own[N], *all = malloc((size_t)size * sizeof own), any = 0;
    size_t i;

    CHECK(all != NULL);
    memcpy(own, values, sizeof own);
    CHECK(brv_all_gather(group, own, all, N, BRV_U32, NULL) == BRV_OK);
    for (rank = 1; rank < size; rank++)
        CHECK(memcmp(all, all + (size_t)rank * N, sizeof own) == 0);
    for (i = 0; i < N; i++)
        any |= own[i];
    CHECK(any != 0);
    free(all);
}

static void average(brv_group *group, uint32_t exponent)
{
    static float gradients[4][N];
    float *pointers[4] = {gradients[0], gradients[1], gradients[2], gradients[3]};
    brv_exchange *exchange = NULL;
    int step, tensor;

    CHECK(brv_exchange_new(group, &exchange) == BRV_OK);
    CHECK(add_dense(exchange, "dense", N) == BRV_OK);
    CHECK(add_topk(exchange, "top-k", N, 0.3) == BRV_OK);
    CHECK(add_gtopk(exchange, "gTop-k", N, 0.3) == BRV_OK);
    CHECK(add_low_rank(exchange, "low rank", 20, 30, 2) == BRV_OK);
    for (step = 0; step < 3; step++) {
        for (tensor = 0; tensor < 4; tensor++)
            fill(gradients[tensor], brv_group_rank(group) + 100 * step + 10 * tensor, exponent);
        CHECK(brv_exchange_average(exchange, pointers, 4, NULL) == BRV_OK);
        for (tensor = 0; tensor < 4; tensor++)
            check_same(group, gradients[tensor]);
    }
    brv_exchange_free(exchange);
}

int main(void)
{
    static const brv_reduction REDUCTIONS[] = {BRV_SUM, BRV_AVERAGE, BRV_MIN, BRV_MAX};
    brv_group *group = join();
    int is_odd = brv_group_rank(group) == 1;
    uint32_t bits = 71362, exponent;
    float four[4], values[N];
    size_t i;

    if (is_odd)
        set_other_mode();
    for (i = 0; i < 4; i++)
        memcpy(&four[i], &bits, sizeof bits);
    CHECK(brv_all_reduce(group, four, four, 4, BRV_F32, BRV_SUM, NULL) == BRV_OK);
    for (i = 0; i < 4; i++) {
        memcpy(&bits, &four[i], sizeof bits);
        CHECK(bits == 71362u * (uint32_t)brv_group_size(group));
    }
    for (exponent = 0; exponent < 254; exponent += 127) {
        for (i = 0; i < 4; i++) {
            fill(values, brv_group_rank(group), exponent);
            CHECK(brv_all_reduce(group, values, values, N, BRV_F32, REDUCTIONS[i], NULL) == BRV_OK);
            check_same(group, values);
        }
        average(group, exponent);
    }
    CHECK(!is_odd || is_other_mode());
    brv_group_free(group);
    return 0;
}
