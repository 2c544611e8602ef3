/* What the programs share: the job, their options, clocks and tables, and the check of results. */
#ifndef BENCH_H
#define BENCH_H

#include <brevity.h>
#include <stddef.h>
#include <stdint.h>

/* ---- The job (main.c) ---------------------------------------------------------------------------------- */

struct job {
    brv_group *group;
    int32_t rank, size;
    const char *program; /* the name, as brv_latency */
};
extern struct job job;

/* Ends the process with one line if a call of the library has failed. */
#define MUST(call) must(call, #call)
void must(brv_status status, const char *call);

/* Memory of at least one byte, whose pages are there; ends the process if there is none. */
void *memory_of(size_t bytes);

/* A program: its name is after brv_, or after brv_i where it starts calls. */
struct program {
    const char *name, *title;
    /* The short options that mean something to it, beside -h and -v. */
    const char *letters;
    const struct defaults *defaults;
    /* Returns the exit status. */
    int (*run)(const struct program *program);
    const struct subject *subject;
    int starts;
};

int run_latency(const struct program *program);
int run_multi_latency(const struct program *program);
int run_stream(const struct program *program);
int run_crossing_streams(const struct program *program);
int run_rates(const struct program *program);
int run_put_latency(const struct program *program);
int run_get_latency(const struct program *program);
int run_put_stream(const struct program *program);
int run_get_stream(const struct program *program);
int run_crossing_puts(const struct program *program);
int run_collective(const struct program *program);
int run_init(const struct program *program);

/* ---- Options (options.c) ------------------------------------------------------------------------------- */

/* How often, for messages of up to 8 KiB and for longer ones. */
struct counts {
    long small, large;
};

struct defaults {
    size_t smallest, largest;
    struct counts iterations, warmup;
};

/* A type of elements. */
struct type {
    const char *name;
    brv_type type;
    size_t size;
};

enum { MOST_TYPES = 3, MOST_PERCENTILES = 5 };

struct options {
    size_t smallest, largest, memory_limit;
    struct counts iterations, warmup;
    int is_full, checks, is_in_place, rotates_root, varies_window, has_many_buffers, has_rate;
    const char *log_folder; /* NULL for no log */
    long checked_warmup, window, pairs, tests;
    int32_t root;
    int percentile_count, percentiles[MOST_PERCENTILES];
    int type_count;
    const struct type *types[MOST_TYPES];
    double density;
    uint32_t factors;
};
extern struct options options;

/* Reads the options. Returns -1 to go on, else the exit status: rank 0 has printed what there is to say. */
int read_options(const struct program *program, int argc, char **argv);

/* The number for messages of this size. */
long count_for(const struct counts *counts, size_t bytes);

/* The size after this one. */
size_t next_size(size_t bytes);

/* ---- Clock and tables (output.c) ----------------------------------------------------------------------- */

/* Microseconds. */
double now(void);

/* The lines before a table. type is NULL where elements have none. */
void print_title(const struct program *program, const struct type *type);

enum { MOST_CELLS = 12 };

/* A row of a table. The names of the first row's cells are the head of the table. */
struct row {
    const char *names[MOST_CELLS];
    char cells[MOST_CELLS][32];
    int count;
};

void add_real(struct row *row, const char *name, double value);
void add_whole(struct row *row, const char *name, long value);
void add_validation(struct row *row, size_t wrong);

/* Percentiles of these samples of this rank; sorts them. The columns are named P50 and this. The rate, where
 * it is not 0, is divided by the samples. */
void add_percentiles(struct row *row, double *samples, long count, const char *what, double rate);

/* Prints the row of a size, or of none if has_size is 0, on rank 0. */
void print_row(const struct row *row, int has_size, size_t bytes);

/* Ends the table: the next row has a head again. */
void end_table(void);

/* The sum, least and largest of a figure over all ranks, on every rank. Collective calls. */
double sum_of(double figure);
double least_of(double figure);
double largest_of(double figure);

/* ---- Checks (validation.c) ----------------------------------------------------------------------------- */

/* Element i of a vector is (i + iteration) % 61 + its mark: small enough for every type. */
void fill(const struct type *type, void *memory, size_t first, size_t n, int64_t mark, long iteration);

/* How many elements are not what the sum of `terms` such vectors has, whose marks are `marks` together. */
size_t count_wrong(const struct type *type, const void *memory, size_t first, size_t n, int64_t terms,
                   int64_t marks, long iteration);

/* The mark of what goes from a rank to another. */
int64_t mark_of(int32_t from, int32_t to);

/* Writes a line to the log, if there is one. */
void log_difference(size_t index, long iteration, double expected, double found);

/* How many elements are lost, and logged: `found`, so many `times`, and the `rest` are to be the `total`. */
size_t count_lost(const float *total, const float *found, double times, const float *rest, size_t n,
                  long iteration);

/* The number of all ranks, on every rank; rank 0 says that there are some. A collective call. */
size_t wrong_everywhere(size_t wrong, size_t bytes);

/* ---- Pairs of ranks (pairs.c) -------------------------------------------------------------------------- */

/* The part of this rank. */
struct pair {
    int32_t peer; /* -1 for a rank that only waits */
    int is_first;
    long count; /* of pairs */
};

/* Ranks 0 and 1; 0 if there are others, or only one, which rank 0 says. */
int is_only_pair(struct pair *pair);

/* Rank i of the first `count`, and rank i + count; 0 if there is only one rank, which rank 0 says. */
int is_among_pairs(struct pair *pair, long count);

/* Whether a size needs more memory than a rank may have, which rank 0 says. */
int is_too_large(size_t needed, size_t bytes);

/* Measures each size with a function that returns how many elements are wrong. A size needs so many times its
 * bytes of memory. The second does so for each type, prints a note before each table, and returns the exit
 * status. */
size_t measure_sizes_of_pair(const struct pair *pair, const struct type *type, size_t memory,
                             size_t (*measure)(const struct pair *, const struct type *, size_t));
int run_pairs(const struct program *program, const struct pair *pair, const char *note, size_t memory,
              size_t (*measure)(const struct pair *, const struct type *, size_t));

double mean_of(const double *samples, long count);

/* With one memory for a window, whoever is written to uses places up to this many bytes in turn, at least a
 * few: the library can't be lent one memory twice. */
enum { PLACES_BYTES = 512 << 10, FEWEST_PLACES = 4 };
long places_for(size_t bytes, long window);

/* ---- Collectives (collective.c, dense.c, compressed.c, sparse.c) --------------------------------------- */

/* What a collective works on: memory of one size. Iterations count from 0, with those of the warm-up. */
struct kind {
    /* The bytes of memory that a size needs. */
    size_t (*needs)(const struct subject *subject, size_t bytes);
    /* NULL if the size has no elements. */
    void *(*open)(const struct subject *subject, const struct type *type, size_t bytes);
    /* Before each call, outside the clock. */
    void (*prepare)(void *work, long iteration);
    /* Before a call that is checked. */
    void (*fill)(void *work, long iteration);
    brv_status (*call)(void *work, brv_request **request);
    size_t (*check)(void *work, long iteration);
    void (*close)(void *work);
};

struct subject {
    const char *name, *title;
    /* Beyond those of every collective. */
    const char *letters;
    const struct kind *kind;
    int has_size, has_type;
    const struct collective *row;
};

extern const struct subject DENSE[], COMPRESSED[], SPARSE[];

/* A number from -1 to 1, the same in every run: gradients have no pattern. */
float gradient_element(int32_t rank, size_t index);

#endif
