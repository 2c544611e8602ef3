/* A value that is not finite: the same error on every rank, the step is left out, and the group stays
 * usable. */
#include "check.h"

enum { COUNT = 1024, ROWS = 32, COLS = 32 };

static brv_status average(brv_group *group, brv_feedback *feedback, int low_rank, float *gradient,
                          double density)
{
    return low_rank ? brv_low_rank_average(group, feedback, gradient, ROWS, COLS, 2, NULL)
                    : brv_gtopk_average(group, feedback, gradient, COUNT, density, NULL);
}

static void one_method(brv_group *group, int low_rank)
{
    static float gradient[COUNT], kept[COUNT], before[COUNT], after[COUNT];
    int32_t own = brv_group_rank(group), size = brv_group_size(group), culprit;
    double densities[2] = {0.05, 0.1};
    brv_feedback *feedback = NULL;
    size_t i;
    int which;

    CHECK(brv_feedback_new(&feedback) == BRV_OK);
    for (i = 0; i < COUNT; i++)
        gradient[i] = (float)number(1, own, i, 50);
    CHECK(average(group, feedback, low_rank, gradient, densities[0]) == BRV_OK);
    CHECK(brv_feedback_residual(feedback, before, COUNT) == BRV_OK);

    /* Also if the call changes the density. */
    for (culprit = 0; culprit < size; culprit++)
        for (which = 0; which < 2; which++) {
            for (i = 0; i < COUNT; i++)
                gradient[i] = (float)number(2, own, i, 50);
            if (own == culprit)
                gradient[17] = which ? INFINITY : NAN;
            memcpy(kept, gradient, sizeof kept);
            CHECK_FAILS(average(group, feedback, low_rank, gradient, densities[which]), BRV_ERR_NON_FINITE,
                        "finite");
            CHECK(brv_last_error_rank() == culprit);
            CHECK(memcmp(kept, gradient, sizeof kept) == 0);
            CHECK(brv_feedback_residual(feedback, after, COUNT) == BRV_OK);
            for (i = 0; i < COUNT; i++)
                CHECK(fabs(before[i] - after[i]) < 1e-3);
        }

    for (i = 0; i < COUNT; i++)
        gradient[i] = (float)number(3, own, i, 50);
    CHECK(average(group, feedback, low_rank, gradient, densities[0]) == BRV_OK);
    for (i = 0; i < COUNT; i++)
        CHECK(isfinite(gradient[i]));
    brv_feedback_free(feedback);
}

int main(void)
{
    brv_group *group = join();

    one_method(group, 0);
    one_method(group, 1);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
