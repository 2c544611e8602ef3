/* An event loop of the program's own: gradients are averaged while it goes on serving its other descriptors.
 *
 *     gcc poll.c -o poll $(pkg-config --cflags --libs brevity) && brevity run -n 4 -- ./poll
 *
 * Here the other descriptor is a timer that ticks every millisecond. The loop never blocks in the library. */
#define _POSIX_C_SOURCE 200809L
#include <brevity.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 20, LENGTH = 100000 };

static float gradient[LENGTH];
static int step;

static int fail(const char *what)
{
    fprintf(stderr, "poll: %s: %s\n", what, brv_last_error());
    return 1;
}

/* The gradient of this rank; in a real program it is computed meanwhile. */
static brv_status start_step(brv_group *group, brv_request **request)
{
    int i;

    for (i = 0; i < LENGTH; i++) {
        gradient[i] = (float)(brv_group_rank(group) + step);
    }
    return brv_iall_reduce(group, gradient, gradient, LENGTH, BRV_F32, BRV_AVERAGE, request, NULL);
}

int main(void)
{
    brv_group *group = NULL;
    brv_request *request = NULL;
    struct itimerspec every = {{0, 1000000}, {0, 1000000}};
    struct pollfd watched[2];
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    unsigned long long ticks = 0;

    if (timer < 0 || timerfd_settime(timer, 0, &every, NULL) != 0) {
        perror("poll: timer");
        return 1;
    }
    if (brv_group_join(NULL, &group) != BRV_OK) {
        return fail("can't join");
    }
    if (start_step(group, &request) != BRV_OK) {
        return fail("can't start");
    }
    while (step < STEPS) {
        int descriptor, milliseconds;
        brv_status status = brv_group_prepare_sleep(group, &descriptor, &milliseconds);

        if (status != BRV_OK && status != BRV_PENDING) {
            return fail("can't sleep");
        }
        if (status == BRV_OK) {
            watched[0].fd = descriptor;
            watched[1].fd = timer;
            watched[0].events = watched[1].events = POLLIN;
            poll(watched, 2, milliseconds);
            if (watched[1].revents != 0) {
                uint64_t count;
                if (read(timer, &count, sizeof count) == sizeof count) {
                    ticks += count;
                }
            }
        }
        /* After the sleep, because a test takes the wake-up; or when something has moved. */
        switch (brv_request_test(request)) {
        case BRV_PENDING:
            break;
        case BRV_OK:
            brv_request_free(request);
            request = NULL;
            if (++step < STEPS && start_step(group, &request) != BRV_OK) {
                return fail("can't start");
            }
            break;
        default:
            return fail("the average failed");
        }
    }
    printf("rank %d of %d: %d averages, the last is %g\n", (int)brv_group_rank(group),
           (int)brv_group_size(group), step, gradient[0]);
    fprintf(stderr, "rank %d: %llu ticks meanwhile\n", (int)brv_group_rank(group), ticks);
    brv_barrier(group, NULL);
    brv_group_free(group);
    close(timer);
    return 0;
}
