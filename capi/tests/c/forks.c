/* Rank 1 forks a child, which inherits everything of the rank: `forks WAY`.
 *
 * `drops`: the child frees its copy of the group and exits, and the job goes on.
 * `dies`: the rank is killed while the child lives; the others still notice. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void drop(brv_group *group)
{
    int status;
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        brv_group_free(group);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void die(void)
{
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        /* Longer than any rank waits. The launcher ends the child. */
        sleep(100);
        _exit(0);
    }
    raise(SIGKILL);
}

int main(int argc, char **argv)
{
    float data[1000] = {0};
    brv_group *group = join();
    brv_status status = brv_barrier(group);
    int i;

    /* Rank 1 may be dead before the others have left the barrier. */
    CHECK(argc == 2 && (status == BRV_OK || strcmp(argv[1], "dies") == 0));
    if (strcmp(argv[1], "dies") == 0) {
        if (brv_group_rank(group) == 1)
            die();
        while (status == BRV_OK)
            status = brv_all_reduce(group, data, data, 1000, BRV_F32, BRV_SUM);
        CHECK(status == BRV_ERR_PEER_LOST && brv_last_error_rank() == 1);
    } else {
        if (brv_group_rank(group) == 1)
            drop(group);
        for (i = 0; i < 100; i++)
            CHECK(brv_all_reduce(group, data, data, 1000, BRV_F32, BRV_SUM) == BRV_OK);
    }
    brv_group_free(group);
    return 0;
}
