/* Two ranks that disagree about n, the type, the reduction or the feedback get BRV_ERR_MISMATCH, and their
 * group is closed. */
#include "check.h"

int main(int argc, char **argv)
{
    static float values[3000];
    brv_group *group = join();
    int32_t rank = brv_group_rank(group);
    size_t n = rank == 0 ? 1000 : 1001;
    brv_feedback *feedback = NULL, *other = NULL;
    brv_status status;

    CHECK(argc == 2 && brv_group_size(group) == 2);
    CHECK(brv_feedback_new(&feedback) == BRV_OK && brv_feedback_new(&other) == BRV_OK);
    if (strcmp(argv[1], "all_reduce") == 0)
        status = brv_all_reduce(group, values, values, n, BRV_F32, BRV_SUM, NULL);
    else if (strcmp(argv[1], "type") == 0)
        status = brv_all_reduce(group, values, values, 1000, rank == 0 ? BRV_F32 : BRV_I32, BRV_SUM, NULL);
    else if (strcmp(argv[1], "reduction") == 0)
        status = brv_all_reduce(group, values, values, 1000, BRV_F32, rank == 0 ? BRV_SUM : BRV_MAX, NULL);
    else if (strcmp(argv[1], "feedback") == 0) {
        /* Both have been used before, in the same order. */
        CHECK(brv_gtopk_average(group, feedback, values, 1000, 0.01, NULL) == BRV_OK);
        CHECK(brv_gtopk_average(group, other, values, 1000, 0.01, NULL) == BRV_OK);
        status = brv_gtopk_average(group, rank == 0 ? feedback : other, values, 1000, 0.01, NULL);
    } else
        status = brv_gtopk_average(group, feedback, values, n, 0.01, NULL);
    CHECK(status != BRV_OK && (brv_last_error_rank() == 1 - rank || brv_last_error_rank() == -1));
    /* In gTop-k rank 0 receives first; rank 1 may only learn that rank 0 is gone. */
    if (rank == 0 || (strcmp(argv[1], "gtopk") != 0 && strcmp(argv[1], "feedback") != 0)) {
        CHECK(status == BRV_ERR_MISMATCH);
        CHECK(strstr(brv_last_error(), "same calls") != NULL);
    }
    /* Ranks no longer agree on the next call: the group is closed, whichever rank has noticed. */
    status = brv_barrier(group, NULL);
    CHECK(status == BRV_ERR_MISMATCH || status == BRV_ERR_ABORTED || status == BRV_ERR_PEER_LOST);
    brv_feedback_free(feedback);
    brv_feedback_free(other);
    brv_group_free(group);
    return 0;
}
