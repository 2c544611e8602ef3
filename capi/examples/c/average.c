/*
 * Averages a gradient over all ranks, dense and by gTop-k.
 *
 *     cc average.c $(pkg-config --cflags --libs brevity) -o average
 *     brevity run -n 4 -- ./average
 */
#include <brevity.h>
#include <stdio.h>

enum { COUNT = 1000 };

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, brv_last_error());
    return 1;
}

int main(void)
{
    brv_group *group = NULL;
    brv_feedback *feedback = NULL;
    float gradient[COUNT], average[COUNT], residual[COUNT];
    int i, step, kept = 0, waiting = 0;

    /* Warnings go to standard error. */
    brv_log_to_stderr();
    if (brv_group_join(NULL, &group) != BRV_OK || brv_feedback_new(&feedback) != BRV_OK)
        return failed("can't join");

    /* Every rank gets the average of all gradients. */
    for (i = 0; i < COUNT; i++)
        gradient[i] = (float)(i + brv_group_rank(group));
    if (brv_all_reduce(group, gradient, average, COUNT, BRV_F32, BRV_AVERAGE, NULL) != BRV_OK)
        return failed("all-reduce");

    /* Only the largest 1 % travels in a step; the rest waits in the residual for its turn. */
    for (step = 0; step < 3; step++) {
        for (i = 0; i < COUNT; i++)
            gradient[i] = (float)(i + brv_group_rank(group));
        if (brv_gtopk_average(group, feedback, gradient, COUNT, 0.01, NULL) != BRV_OK)
            return failed("gTop-k all-reduce");
    }
    if (brv_feedback_residual(feedback, residual, COUNT) != BRV_OK)
        return failed("residual");
    for (i = 0; i < COUNT; i++) {
        kept += gradient[i] != 0;
        waiting += residual[i] != 0;
    }
    printf("rank %d of %d over %s: average[0] = %g, %d entries came, %d wait\n", (int)brv_group_rank(group),
           (int)brv_group_size(group), brv_group_transport(group), average[0], kept, waiting);

    if (brv_barrier(group, NULL) != BRV_OK)
        return failed("barrier");
    brv_feedback_free(feedback);
    brv_group_free(group);
    return 0;
}
