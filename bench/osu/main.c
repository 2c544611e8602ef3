/* Programs with the words, columns and method of the OSU benchmarks, through the C interface of Brevity.
 *
 * All of them are this one, which looks at the name that it was called by: each is a row of a table here, in
 * dense.c, compressed.c or sparse.c. They are started by brevity run, mpirun or srun, and join by themselves.
 */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job job;

/* How long joining took, in microseconds. */
static double joining;

enum { KIB = 1 << 10, MIB = 1 << 20 };

static const struct defaults LATENCY = {0, 4 * MIB, {10000, 1000}, {100, 10}};
static const struct defaults ONE_SIDED_LATENCY = {1, 4 * MIB, {10000, 1000}, {100, 10}};
static const struct defaults STREAM = {1, 4 * MIB, {100, 20}, {10, 2}};
static const struct defaults COLLECTIVE = {1, MIB, {1000, 100}, {100, 10}};

static const struct program PROGRAMS[] = {
    {"latency", "Latency", "mixcuTzM", &LATENCY, run_latency, NULL, 0},
    {"multi_lat", "Multi Latency", "mixcuTzMp", &LATENCY, run_multi_latency, NULL, 0},
    {"bw", "Bandwidth", "mixcuTzMWb", &STREAM, run_stream, NULL, 0},
    {"bibw", "Bi-Directional Bandwidth", "mixcuTzMWb", &STREAM, run_crossing_streams, NULL, 0},
    {"mbw_mr", "Multiple Bandwidth / Message Rate", "mixcuTMWbVpR", &STREAM, run_rates, NULL, 0},
    {"put_latency", "Put Latency", "mixcuzM", &ONE_SIDED_LATENCY, run_put_latency, NULL, 0},
    {"get_latency", "Get Latency", "mixcuzM", &ONE_SIDED_LATENCY, run_get_latency, NULL, 0},
    {"put_bw", "Put Bandwidth", "mixcuzMW", &STREAM, run_put_stream, NULL, 0},
    {"get_bw", "Get Bandwidth", "mixcuzMW", &STREAM, run_get_stream, NULL, 0},
    {"put_bibw", "Put Bi-directional Bandwidth", "mixcuzMW", &STREAM, run_crossing_puts, NULL, 0},
    {"init", "Init", "", &LATENCY, run_init, NULL, 0},
};
enum { PROGRAM_COUNT = sizeof PROGRAMS / sizeof *PROGRAMS };

void must(brv_status status, const char *call)
{
    if (status == BRV_OK)
        return;
    fprintf(stderr, "%s: rank %d: %s: %s: %s\n", job.program, (int)job.rank, call,
            brv_status_string(status), brv_last_error());
    exit(EXIT_FAILURE);
}

void *memory_of(size_t bytes)
{
    enum { PAGE = 4096 };
    volatile char *memory = calloc(bytes + 1, 1);
    size_t i;

    if (memory == NULL) {
        fprintf(stderr, "%s: rank %d: no memory for %zu bytes: lower -m or -W\n", job.program, (int)job.rank,
                bytes);
        exit(EXIT_FAILURE);
    }
    for (i = 0; i < bytes; i += PAGE)
        memory[i] = 0;
    return (void *)memory;
}

int run_init(const struct program *program)
{
    double least = least_of(joining) * 1e-3, largest = largest_of(joining) * 1e-3;
    double mean = sum_of(joining) / job.size * 1e-3;

    print_title(program, NULL);
    if (job.rank == 0)
        printf("nprocs: %d, min: %.2f ms, max: %.2f ms, avg: %.2f ms\n", (int)job.size, least, largest, mean);
    return EXIT_SUCCESS;
}

/* The letters of a collective: all that its kind has, and its own. */
static void add_letters(const struct subject *subject, int starts, char *letters)
{
    strcpy(letters, "ixfcu");
    if (!subject->has_size)
        strcpy(letters, "ixf");
    else
        strcat(letters, "mM");
    strcat(letters, subject->has_type ? "T" : "");
    strcat(letters, starts ? "t" : "z");
    strcat(letters, subject->letters);
}

/* Looks for a collective, or for one that is started, whose name has an i before it. */
static int find_collective(const struct subject *subjects, const char *name, struct program *program)
{
    static char letters[32];
    const struct subject *subject;

    for (subject = subjects; subject->name != NULL; subject++) {
        int starts = name[0] == 'i' && strcmp(name + 1, subject->name) == 0;

        if (!starts && strcmp(name, subject->name) != 0)
            continue;
        add_letters(subject, starts, letters);
        program->name = name;
        program->title = subject->title;
        program->letters = letters;
        program->defaults = &COLLECTIVE;
        program->run = run_collective;
        program->subject = subject;
        program->starts = starts;
        return 1;
    }
    return 0;
}

static int find_program(const char *name, struct program *program)
{
    int i;

    if (strncmp(name, "brv_", 4) != 0)
        return 0;
    name += 4;
    for (i = 0; i < PROGRAM_COUNT; i++)
        if (strcmp(PROGRAMS[i].name, name) == 0) {
            *program = PROGRAMS[i];
            return 1;
        }
    return find_collective(DENSE, name, program) || find_collective(COMPRESSED, name, program) ||
           find_collective(SPARSE, name, program);
}

/* For the Makefile: the name of each program on a line. */
static void print_names(void)
{
    const struct subject *tables[] = {DENSE, COMPRESSED, SPARSE}, *subject;
    int i;

    for (i = 0; i < PROGRAM_COUNT; i++)
        printf("brv_%s\n", PROGRAMS[i].name);
    for (i = 0; i < 3; i++)
        for (subject = tables[i]; subject->name != NULL; subject++)
            printf("brv_%s\nbrv_i%s\n", subject->name, subject->name);
}

int main(int argc, char **argv)
{
    struct program program;
    const char *slash = strrchr(argv[0], '/');
    double begun;
    int status;

    job.program = slash == NULL ? argv[0] : slash + 1;
    if (argc == 2 && strcmp(argv[1], "--names") == 0) {
        print_names();
        return EXIT_SUCCESS;
    }
    if (!find_program(job.program, &program)) {
        fprintf(stderr, "%s: expected to be called by the name of a program, as brv_latency: --names\n",
                job.program);
        return EXIT_FAILURE;
    }
    brv_log_to_stderr();
    begun = now();
    if (brv_group_join(NULL, &job.group) != BRV_OK) {
        fprintf(stderr, "%s: can't join: %s\n", job.program, brv_last_error());
        return EXIT_FAILURE;
    }
    joining = now() - begun;
    job.rank = brv_group_rank(job.group);
    job.size = brv_group_size(job.group);
    status = read_options(&program, argc, argv);
    if (status < 0)
        status = program.run(&program);
    MUST(brv_barrier(job.group, NULL));
    brv_group_free(job.group);
    return status;
}
