/* gTop-k: the results and all residuals add up to the input, also when the density changes. */
#include "check.h"

enum { COUNT = 5000, STEPS = 6, LIMIT = 100 };

static const double DENSITIES[STEPS] = {0.01, 0.01, 0.1, 0.001, 1.0, 0.01};

/* The sum over ranks of one number for each rank and index, by another collective than the one under test. */
static void sum_over_ranks(brv_group *group, float *values)
{
    CHECK(brv_all_reduce(group, values, values, COUNT, BRV_F32, BRV_SUM, NULL) == BRV_OK);
}

static size_t count_kept(const float *values)
{
    size_t i, kept = 0;
    for (i = 0; i < COUNT; i++)
        kept += values[i] != 0;
    return kept;
}

static void same_on_all_ranks(brv_group *group, const float *values)
{
    static float first[COUNT];
    memcpy(first, values, sizeof first);
    CHECK(brv_broadcast(group, first, COUNT, BRV_F32, 0, NULL) == BRV_OK);
    CHECK(memcmp(first, values, sizeof first) == 0);
}

int main(void)
{
    static float gradient[COUNT], waiting[COUNT];
    static double went_in[COUNT], came_out[COUNT];
    brv_group *group = join();
    int32_t own = brv_group_rank(group), size = brv_group_size(group), rank;
    brv_feedback *feedback = NULL;
    uint32_t step;
    size_t i;

    CHECK(brv_feedback_new(&feedback) == BRV_OK);
    for (step = 0; step < STEPS; step++) {
        for (i = 0; i < COUNT; i++) {
            gradient[i] = (float)number(step, own, i, LIMIT);
            for (rank = 0; rank < size; rank++)
                went_in[i] += number(step, rank, i, LIMIT);
        }
        CHECK(brv_gtopk_average(group, feedback, gradient, COUNT, DENSITIES[step], NULL) == BRV_OK);
        same_on_all_ranks(group, gradient);
        CHECK(count_kept(gradient) > 0 && (double)count_kept(gradient) <= DENSITIES[step] * COUNT);

        CHECK(brv_feedback_residual(feedback, waiting, COUNT) == BRV_OK);
        CHECK(size == 1 || DENSITIES[step] == 1.0 || count_kept(waiting) > 0);
        sum_over_ranks(group, waiting);
        for (i = 0; i < COUNT; i++) {
            came_out[i] += (double)gradient[i] * size;
            CHECK(fabs(came_out[i] + waiting[i] - went_in[i]) < 1e-3);
            CHECK(size & (size - 1) || came_out[i] + waiting[i] == went_in[i]);
        }
    }
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    brv_feedback_free(feedback);
    return 0;
}
