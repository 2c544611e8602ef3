/* Rank 1 aborts or dies: the others get an error that names it, at once and in every later call. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <unistd.h>

int main(int argc, char **argv)
{
    float before[64], gradient[64], residual[64];
    brv_group *group = join();
    brv_feedback *feedback = NULL;
    brv_status status, expected = BRV_ERR_ABORTED;
    size_t i;

    CHECK(argc == 2 && brv_feedback_new(&feedback) == BRV_OK);
    if (strcmp(argv[1], "lost") == 0)
        expected = BRV_ERR_PEER_LOST;
    /* Rank 1 may leave the barrier, and the group, before the others have. */
    status = brv_barrier(group, NULL);
    CHECK(status == BRV_OK || (status == expected && brv_last_error_rank() == 1));
    if (brv_group_rank(group) == 1) {
        if (expected == BRV_ERR_PEER_LOST)
            _exit(0); /* no destructor runs, as when a process is killed */
        CHECK(brv_group_abort(group) == BRV_OK);
        CHECK_FAILS(brv_barrier(group, NULL), BRV_ERR_ABORTED, "abort");
        CHECK(brv_last_error_rank() == 1);
        brv_feedback_free(feedback);
        brv_group_free(group);
        return 0;
    }
    for (i = 0; i < 64; i++)
        before[i] = gradient[i] = (float)(i + 1);
    CHECK(brv_gtopk_average(group, feedback, gradient, 64, 0.1, NULL) == expected);
    CHECK(brv_last_error_rank() == 1);
    /* The gradients are in the residual. */
    CHECK(memcmp(before, gradient, sizeof before) == 0);
    CHECK(brv_feedback_residual(feedback, residual, 64) == BRV_OK);
    CHECK(memcmp(before, residual, sizeof before) == 0);
    CHECK(brv_barrier(group, NULL) == expected && brv_last_error_rank() == 1);
    brv_group_free(group);
    brv_feedback_free(feedback);
    return 0;
}
