/* Rank 1 aborts in a signal handler that interrupts its thread anywhere, usually in a call on the group:
 * every rank gets an error that names rank 1. `abort_in_handler MICROSECONDS` until the signal. */
#define _XOPEN_SOURCE 700
#include "check.h"
#include <errno.h>
#include <signal.h>
#include <sys/time.h>

static brv_group *group;

static void handler(int signal)
{
    int saved = errno;

    (void)signal;
    brv_group_abort(group);
    errno = saved;
}

int main(int argc, char **argv)
{
    struct itimerval timer = {{0, 0}, {0, 0}};
    struct sigaction action;
    float data[16] = {0};
    brv_status status;

    CHECK(argc == 2);
    group = join();
    status = brv_barrier(group, NULL);
    /* The signal may come before the others have left the barrier. */
    CHECK(status == BRV_OK || status == BRV_ERR_ABORTED);
    if (brv_group_rank(group) == 1) {
        memset(&action, 0, sizeof action);
        action.sa_handler = handler;
        CHECK(sigaction(SIGALRM, &action, NULL) == 0);
        timer.it_value.tv_usec = atoi(argv[1]);
        CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    }
    while (status == BRV_OK)
        status = brv_all_reduce(group, data, data, 16, BRV_F32, BRV_SUM, NULL);
    CHECK(status == BRV_ERR_ABORTED && brv_last_error_rank() == 1);
    CHECK_FAILS(brv_barrier(group, NULL), BRV_ERR_ABORTED, "abort");
    brv_group_free(group);
    return 0;
}
