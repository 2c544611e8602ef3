/* Rank 1 aborts outside of calls and never calls again: it sleeps, or exits at once. No rank takes it for
 * lost. `abort_and_exit WAY`: `sleeps`, `exits`. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <unistd.h>

int main(int argc, char **argv)
{
    brv_group *group = join();
    brv_status status = brv_barrier(group, NULL);

    /* Rank 1 may abort before the others have left the barrier. */
    CHECK(argc == 2 && (status == BRV_OK || status == BRV_ERR_ABORTED));
    if (brv_group_rank(group) == 1) {
        CHECK(brv_group_abort(group) == BRV_OK);
        if (strcmp(argv[1], "sleeps") == 0)
            sleep(1);
        _exit(0);
    }
    CHECK(brv_barrier(group, NULL) == BRV_ERR_ABORTED && brv_last_error_rank() == 1);
    brv_group_free(group);
    return 0;
}
