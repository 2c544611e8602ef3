/* Every type and reduction, in place and not, against a serial computation, at any number of ranks. */
#include "check.h"

#define LIMIT 1000 /* sums of a few ranks are exact in every type */

static const size_t COUNTS[] = {0, 1, 7, 1000, 300001};

#define DEFINE(NAME, TYPE, NUMBER, IS_FLOAT)                                                                 \
    static TYPE input_##NAME(int32_t rank, size_t i) { return (TYPE)number(NUMBER, rank, i, LIMIT); }        \
                                                                                                             \
    static TYPE oracle_##NAME(int32_t size, size_t i, brv_reduction reduction)                               \
    {                                                                                                        \
        TYPE result = input_##NAME(0, i);                                                                    \
        int32_t rank;                                                                                        \
        for (rank = 1; rank < size; rank++) {                                                                \
            TYPE next = input_##NAME(rank, i);                                                               \
            if (reduction == BRV_MAX)                                                                        \
                result = next > result ? next : result;                                                      \
            else if (reduction == BRV_MIN)                                                                   \
                result = next < result ? next : result;                                                      \
            else                                                                                             \
                result = (TYPE)(result + next);                                                              \
        }                                                                                                    \
        return reduction == BRV_AVERAGE ? (TYPE)(result / (TYPE)size) : result;                              \
    }                                                                                                        \
                                                                                                             \
    static void reduce_##NAME(brv_group *group, size_t n, brv_reduction reduction)                           \
    {                                                                                                        \
        int32_t rank = brv_group_rank(group), size = brv_group_size(group);                                  \
        TYPE *in = malloc((n + 1) * sizeof *in), *out = malloc((n + 1) * sizeof *out);                       \
        size_t i;                                                                                            \
        CHECK(in != NULL && out != NULL);                                                                    \
        for (i = 0; i < n; i++)                                                                              \
            in[i] = input_##NAME(rank, i);                                                                   \
        CHECK(brv_all_reduce(group, in, out, n, NUMBER, reduction, NULL) == BRV_OK);                         \
        for (i = 0; i < n; i++)                                                                              \
            CHECK(in[i] == input_##NAME(rank, i) && out[i] == oracle_##NAME(size, i, reduction));            \
        CHECK(brv_all_reduce(group, in, in, n, NUMBER, reduction, NULL) == BRV_OK);                          \
        CHECK(n == 0 || memcmp(in, out, n * sizeof *in) == 0);                                               \
        free(in);                                                                                            \
        free(out);                                                                                           \
    }                                                                                                        \
                                                                                                             \
    static void move_##NAME(brv_group *group, size_t n)                                                      \
    {                                                                                                        \
        int32_t rank = brv_group_rank(group), size = brv_group_size(group), from;                            \
        TYPE *own = malloc((n + 1) * sizeof *own), *all = malloc((n * (size_t)size + 1) * sizeof *all);      \
        size_t i;                                                                                            \
        CHECK(own != NULL && all != NULL);                                                                   \
        for (i = 0; i < n; i++)                                                                              \
            own[i] = input_##NAME(rank, i);                                                                  \
        CHECK(brv_all_gather(group, own, all, n, NUMBER, NULL) == BRV_OK);                                   \
        for (from = 0; from < size; from++)                                                                  \
            for (i = 0; i < n; i++)                                                                          \
                CHECK(all[(size_t)from * n + i] == input_##NAME(from, i));                                   \
        /* In place, with the others' places unset. */                                                       \
        for (i = 0; i < n * (size_t)size; i++)                                                               \
            all[i] = i / n == (size_t)rank ? own[i % n] : (TYPE)77;                                          \
        CHECK(brv_all_gather(group, all + (size_t)rank * n, all, n, NUMBER, NULL) == BRV_OK);                \
        for (from = 0; from < size; from++)                                                                  \
            for (i = 0; i < n; i++)                                                                          \
                CHECK(all[(size_t)from * n + i] == input_##NAME(from, i));                                   \
        for (from = 0; from < size; from++) {                                                                \
            for (i = 0; i < n && rank == from; i++)                                                          \
                own[i] = input_##NAME(rank, i + 1);                                                          \
            CHECK(brv_broadcast(group, own, n, NUMBER, from, NULL) == BRV_OK);                               \
            for (i = 0; i < n; i++)                                                                          \
                CHECK(own[i] == input_##NAME(from, i + 1));                                                  \
        }                                                                                                    \
        free(own);                                                                                           \
        free(all);                                                                                           \
    }                                                                                                        \
                                                                                                             \
    static void test_##NAME(brv_group *group)                                                                \
    {                                                                                                        \
        size_t which;                                                                                        \
        for (which = 0; which < sizeof COUNTS / sizeof *COUNTS; which++) {                                   \
            reduce_##NAME(group, COUNTS[which], BRV_SUM);                                                    \
            reduce_##NAME(group, COUNTS[which], BRV_MAX);                                                    \
            reduce_##NAME(group, COUNTS[which], BRV_MIN);                                                    \
            if (IS_FLOAT)                                                                                    \
                reduce_##NAME(group, COUNTS[which], BRV_AVERAGE);                                            \
            move_##NAME(group, COUNTS[which]);                                                               \
        }                                                                                                    \
    }

DEFINE(f32, float, BRV_F32, 1)
DEFINE(f64, double, BRV_F64, 1)
DEFINE(i32, int32_t, BRV_I32, 0)
DEFINE(i64, int64_t, BRV_I64, 0)
DEFINE(u32, uint32_t, BRV_U32, 0)
DEFINE(u64, uint64_t, BRV_U64, 0)
DEFINE(u8, uint8_t, BRV_U8, 0)

int main(void)
{
    brv_group *group = join();

    test_f32(group);
    test_f64(group);
    test_i32(group);
    test_i64(group);
    test_u32(group);
    test_u64(group);
    test_u8(group);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
