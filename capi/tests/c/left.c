/* Ranks that are left alone or behind: `left WAY`, on 4 ranks.
 *
 * `few`: only rank 3 is left, which is no majority.
 * `stopped`: rank 2 is stopped. The others go on without it, and it is told so when it is continued. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <signal.h>
#include <unistd.h>

static int32_t sum(brv_group *group, int32_t value)
{
    CHECK(brv_all_reduce(group, &value, &value, 1, BRV_I32, BRV_SUM, NULL) == BRV_OK);
    return value;
}

static void few(brv_group *group)
{
    brv_group *left = group, *next = NULL;
    brv_status status;
    int tries;

    if (brv_group_rank(group) < 3)
        raise(SIGKILL);
    while ((status = brv_barrier(group, NULL)) == BRV_OK)
        ;
    CHECK(status == BRV_ERR_PEER_LOST);
    for (tries = 0; tries < 2; tries++) {
        CHECK_FAILS(brv_group_shrink(group, &left, NULL), BRV_ERR_NO_MAJORITY, "1 of 4 ranks");
        CHECK(left == NULL && brv_last_error_rank() == -1);
    }
    CHECK(brv_group_shrink_any(group, &left, NULL) == BRV_OK);
    CHECK(brv_group_size(left) == 1 && brv_group_world_rank(left, 0) == 3 && sum(left, 5) == 5);
    CHECK(brv_group_first_size(left) == 4);
    CHECK_FAILS(brv_group_shrink(group, &next, NULL), BRV_ERR_ARGUMENT, "shrunk before");
    brv_group_free(group);
    brv_group_free(left);
}

static void stopped(brv_group *group)
{
    int32_t own = (int32_t)getpid(), processes[4];
    brv_group *twin = NULL, *left = NULL;
    brv_options options = BRV_OPTIONS_INIT;

    options.timeout = 2;
    CHECK(brv_group_duplicate(group, &twin, NULL) == BRV_OK);
    CHECK(brv_all_gather(group, &own, processes, 1, BRV_I32, NULL) == BRV_OK);
    if (brv_group_rank(group) == 2) {
        raise(SIGSTOP);
        /* All that it needs for one may have arrived. */
        while (brv_barrier(group, NULL) == BRV_OK)
            ;
        CHECK_FAILS(brv_group_shrink(group, &left, NULL), BRV_ERR_EXCLUDED, "go on without this one");
        CHECK(left == NULL);
    } else {
        CHECK(brv_barrier(group, &options) != BRV_OK);
        CHECK(brv_group_shrink(group, &left, &options) == BRV_OK);
        CHECK(brv_group_size(left) == 3 && sum(left, 1) == 3);
        if (brv_group_rank(left) == 0)
            CHECK(kill((pid_t)processes[2], SIGCONT) == 0);
        /* Until it has ended. */
        CHECK(brv_barrier(twin, NULL) == BRV_ERR_PEER_LOST && brv_last_error_rank() == 2);
    }
    brv_group_free(left);
    brv_group_free(twin);
    brv_group_free(group);
}

int main(int argc, char **argv)
{
    brv_group *group = join();

    CHECK(argc == 2 && brv_group_size(group) == 4);
    if (strcmp(argv[1], "few") == 0)
        few(group);
    else
        stopped(group);
    return 0;
}
