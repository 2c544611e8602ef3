/* The least that two processes pay for a word through shared memory where processes outnumber processors: a
 * flag, and sched_yield while it has not changed.
 *
 * Usage: flag_pairs SOCKET RANKS
 *
 * Starts RANKS processes, of which 2i and 2i+1 are a pair. Each connects to the Unix socket SOCKET and
 * answers "latency BYTES ITERATIONS WARMUP" as mpi_p2p.c does; BYTES is at most 8, since the flag is the
 * message.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_SAMPLES = 100 };

/* Each process writes its own line only. */
struct flag {
    _Alignas(128) _Atomic unsigned long value;
};

static struct flag *flags;
static int rank;

static void fail(const char *what)
{
    fprintf(stderr, "flag_pairs: rank %d: ", rank);
    perror(what);
    exit(1);
}

static double microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static void await(unsigned long value)
{
    while (atomic_load_explicit(&flags[rank ^ 1].value, memory_order_acquire) != value)
        sched_yield();
}

static void ping_pong(unsigned long *round, int count)
{
    for (int i = 0; i < count; i++) {
        ++*round;
        if (rank % 2 == 1)
            await(*round);
        atomic_store_explicit(&flags[rank].value, *round, memory_order_release);
        if (rank % 2 == 0)
            await(*round);
    }
}

static void serve(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (strlen(path) >= sizeof address.sun_path)
        fail("the socket's name is too long");
    strcpy(address.sun_path, path);
    int line = socket(AF_UNIX, SOCK_STREAM, 0);
    if (line < 0 || connect(line, (struct sockaddr *)&address, sizeof address) != 0)
        fail("nobody listens");
    FILE *orders = fdopen(line, "r"), *conductor = fdopen(dup(line), "w");
    char text[128];
    int bytes, iterations, warmup;
    unsigned long round = 0;
    fprintf(conductor, "hello %d\n", rank);
    fflush(conductor);
    while (fgets(text, sizeof text, orders) != NULL) {
        if (sscanf(text, "latency %d %d %d", &bytes, &iterations, &warmup) != 3 || bytes > 8
            || iterations < 1)
            fail("an order makes no sense");
        int samples = iterations < MOST_SAMPLES ? iterations : MOST_SAMPLES;
        ping_pong(&round, warmup + 1);
        fprintf(conductor, "{\"samples_us\":[");
        double sum = 0;
        for (int sample = 0; sample < samples; sample++) {
            int count = iterations / samples + (sample < iterations % samples);
            double start = microseconds();
            ping_pong(&round, count);
            double time = (microseconds() - start) / count / 2;
            sum += time * count;
            if (rank % 2 == 0)
                fprintf(conductor, "%s%.4f", sample ? "," : "", time);
        }
        if (rank % 2 == 0)
            fprintf(conductor, "],\"mean_us\":%.4f}\n", sum / iterations);
        else
            fprintf(conductor, "]}\n");
        fflush(conductor);
    }
}

int main(int argc, char **argv)
{
    int ranks = argc == 3 ? atoi(argv[2]) : 0;
    if (ranks < 2 || ranks % 2 != 0 || ranks > 1024) {
        fprintf(stderr, "usage: flag_pairs SOCKET RANKS, with RANKS even\n");
        return 2;
    }
    flags = mmap(NULL, ranks * sizeof *flags, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (flags == MAP_FAILED)
        fail("no shared memory");
    for (int child = 0; child < ranks; child++) {
        pid_t process = fork();
        if (process < 0)
            fail("no process");
        if (process == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            rank = child;
            serve(argv[1]);
            return 0;
        }
    }
    int status, failed = 0;
    while (wait(&status) > 0)
        failed |= status;
    return failed != 0;
}
