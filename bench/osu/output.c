/* The clock, and the tables in the columns of the OSU benchmarks. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIZE_WIDTH = 10, WIDTH = 20, WHOLE_WIDTH = 12 };

static int has_head;

double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

void print_title(const struct program *program, const struct type *type)
{
    if (job.rank != 0)
        return;
    printf("\n# Brevity %s%s Test v%s\n", program->starts ? "Non-blocking " : "", program->title,
           brv_version());
    printf("# Ranks: %d, transport: %s.\n", (int)job.size, brv_group_transport(job.group));
    if (type != NULL)
        printf("# Datatype: %s.\n", type->name);
    fflush(stdout);
}

static char *add(struct row *row, const char *name)
{
    row->names[row->count] = name;
    return row->cells[row->count++];
}

void add_real(struct row *row, const char *name, double value)
{
    snprintf(add(row, name), sizeof row->cells[0], "%*.2f", WIDTH, value);
}

void add_whole(struct row *row, const char *name, long value)
{
    snprintf(add(row, name), sizeof row->cells[0], "%*ld", WHOLE_WIDTH, value);
}

void add_validation(struct row *row, size_t wrong)
{
    snprintf(add(row, "Validation"), sizeof row->cells[0], "%*s", WIDTH, wrong == 0 ? "Pass" : "Fail");
}

/* Times differ by less than a double can tell only if they are equal. */
static int compare(const void *a, const void *b)
{
    const double *left = a, *right = b;

    return (*left > *right) - (*left < *right);
}

void add_percentiles(struct row *row, double *samples, long count, const char *what, double rate)
{
    static char names[MOST_PERCENTILES][32];
    int i;

    qsort(samples, (size_t)count, sizeof *samples, compare);
    for (i = 0; i < options.percentile_count; i++) {
        /* The least sample that so many percent are not above. */
        double sample = samples[(count * options.percentiles[i] + 99) / 100 - 1];

        snprintf(names[i], sizeof names[i], "P%d %s", options.percentiles[i], what);
        add_real(row, names[i], rate == 0 ? sample : rate / sample);
    }
}

/* The head: names above the cells, as wide as these. */
static void print_head(const struct row *row, int has_size)
{
    int i;

    if (has_size)
        printf("%-*s", SIZE_WIDTH, "# Size");
    for (i = 0; i < row->count; i++)
        if (i == 0 && !has_size)
            printf("# %*s", (int)strlen(row->cells[0]) - 2, row->names[0]);
        else
            printf("%*s", (int)strlen(row->cells[i]), row->names[i]);
    printf("\n");
}

void print_row(const struct row *row, int has_size, size_t bytes)
{
    int i;

    if (job.rank != 0)
        return;
    if (!has_head)
        print_head(row, has_size);
    has_head = 1;
    if (has_size)
        printf("%-*zu", SIZE_WIDTH, bytes);
    for (i = 0; i < row->count; i++)
        fputs(row->cells[i], stdout);
    printf("\n");
    fflush(stdout);
}

void end_table(void)
{
    has_head = 0;
}

static double over_all(double figure, brv_reduction reduction)
{
    MUST(brv_all_reduce(job.group, &figure, &figure, 1, BRV_F64, reduction, NULL));
    return figure;
}

double sum_of(double figure)
{
    return over_all(figure, BRV_SUM);
}

double least_of(double figure)
{
    return over_all(figure, BRV_MIN);
}

double largest_of(double figure)
{
    return over_all(figure, BRV_MAX);
}
