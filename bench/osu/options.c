/* The options, with the words of the OSU benchmarks. */
#include "bench.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LARGE = 8192 };

struct options options;

static const struct type TYPES[MOST_TYPES] = {
    {"MPI_CHAR", BRV_I8, 1},
    {"MPI_INT", BRV_I32, 4},
    {"MPI_FLOAT", BRV_F32, 4},
};

struct word {
    char letter;
    const char *name;
    int argument;
    const char *value, *help;
};

static const struct word WORDS[] = {
    {'m', "message-size", required_argument, "[MIN:]MAX", "bytes, doubling; also MIN: and :MAX"},
    {'i', "iterations", required_argument, "N", "iterations, for all sizes"},
    {'x', "warmup", required_argument, "N", "iterations before those, for all sizes"},
    {'f', "full", no_argument, "", "also print the least, the largest, and iterations"},
    {'c', "validation", optional_argument, "[log:DIR]", "check results; log what differs to DIR"},
    {'u', "validation-warmup", required_argument, "N", "calls before each that is checked [5]"},
    {'T', "type", required_argument, "TYPE", "all, mpi_char, mpi_int or mpi_float [mpi_char]"},
    {'l', "in-place", no_argument, "", "call in place, on the root where there is one"},
    {'k', "root-rank", required_argument, "ROOT", "fixed:RANK or rotate [fixed:0]"},
    {'W', "window-size", required_argument, "N", "messages before an acknowledgement [64]"},
    {'V', "vary-window", no_argument, "", "windows of 8 to 128 messages; not with -W"},
    {'p', "num-pairs", required_argument, "N", "pairs of ranks [half of the ranks]"},
    {'R', "print-rate", required_argument, "0|1", "print the rate of messages [1]"},
    {'b', "buffer-num", required_argument, "WHICH", "single or multiple memory of a window [single]"},
    {'t', "num-test-calls", required_argument, "N", "tests of the call while computing [0]"},
    {'z', "tail-lat", optional_argument, "[P,P..]", "percentiles, at most 5 [50,90,99]"},
    {'M', "mem-limit", required_argument, "BYTES", "memory of a rank [536870912]"},
    {'e', "density", required_argument, "D", "the share of entries that are sent [0.01]"},
    {'n', "factor-rank", required_argument, "N", "the rank of the factors [4]"},
    {'h', "help", no_argument, "", "print this"},
    {'v', "version", no_argument, "", "print the version"},
    /* Words of the OSU benchmarks that mean nothing to Brevity. */
    {'G', "graph", required_argument, NULL, NULL},
    {'P', "papi", required_argument, NULL, NULL},
    {'D', "ddt", required_argument, NULL, NULL},
    {'N', "nhbr", required_argument, NULL, NULL},
    {'I', "session", no_argument, NULL, NULL},
    {'d', "accelerator", required_argument, NULL, NULL},
    {'r', "cuda-target", required_argument, NULL, NULL},
    {'s', "sync-option", required_argument, NULL, NULL},
    {'w', "win-option", required_argument, NULL, NULL},
    {'a', "array-size", required_argument, NULL, NULL},
};
enum { WORD_COUNT = sizeof WORDS / sizeof *WORDS };

long count_for(const struct counts *counts, size_t bytes)
{
    return bytes > LARGE ? counts->large : counts->small;
}

size_t next_size(size_t bytes)
{
    return bytes == 0 ? 1 : 2 * bytes;
}

static void set_defaults(const struct defaults *defaults)
{
    static const struct options NONE;

    options = NONE;
    options.smallest = defaults->smallest;
    options.largest = defaults->largest;
    options.iterations = defaults->iterations;
    options.warmup = defaults->warmup;
    options.memory_limit = (size_t)512 << 20;
    options.checked_warmup = 5;
    options.window = 64;
    options.pairs = job.size / 2;
    options.has_rate = 1;
    options.types[options.type_count++] = &TYPES[0];
    options.density = 0.01;
    options.factors = 4;
}

/* Reads a whole number from least to most. */
static int read_whole(const char *text, long long least, long long most, long long *value)
{
    char *end;

    errno = 0;
    *value = strtoll(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && *value >= least && *value <= most;
}

static int read_long(const char *text, long least, long *value)
{
    long long number;
    int is_read = read_whole(text, least, 1000000000, &number);

    if (is_read)
        *value = (long)number;
    return is_read;
}

static int read_bytes(const char *text, size_t *value)
{
    long long number;
    int is_read = read_whole(text, 1, 1LL << 40, &number);

    if (is_read)
        *value = (size_t)number;
    return is_read;
}

/* MAX, MIN:MAX, MIN: or :MAX. */
static int read_sizes(const char *text)
{
    char copy[64], *colon;
    int is_read = 1;

    if (strlen(text) >= sizeof copy)
        return 0;
    strcpy(copy, text);
    colon = strchr(copy, ':');
    if (colon == NULL)
        is_read = read_bytes(copy, &options.largest);
    else {
        *colon = '\0';
        is_read = colon != copy || colon[1] != '\0';
        if (colon != copy)
            is_read = read_bytes(copy, &options.smallest);
        if (colon[1] != '\0')
            is_read = is_read && read_bytes(colon + 1, &options.largest);
    }
    return is_read && options.smallest <= options.largest;
}

static int read_counts(const char *text, long least, struct counts *counts)
{
    int is_read = read_long(text, least, &counts->small);

    counts->large = counts->small;
    return is_read;
}

static int read_types(const char *text)
{
    int i, is_all = strcasecmp(text, "all") == 0;

    options.type_count = 0;
    for (i = 0; i < MOST_TYPES; i++)
        if (is_all || strcasecmp(text, TYPES[i].name) == 0)
            options.types[options.type_count++] = &TYPES[i];
    return options.type_count > 0;
}

static int read_root(const char *text)
{
    long long root;

    options.rotates_root = strcmp(text, "rotate") == 0;
    if (options.rotates_root)
        return 1;
    if (strncmp(text, "fixed:", 6) != 0 || !read_whole(text + 6, 0, job.size - 1, &root))
        return 0;
    options.root = (int32_t)root;
    return 1;
}

static int read_percentiles(const char *text)
{
    char copy[64], *word;
    long value;

    options.percentile_count = 0;
    if (text == NULL)
        text = "50,90,99";
    if (strlen(text) >= sizeof copy)
        return 0;
    for (word = strtok(strcpy(copy, text), ","); word != NULL; word = strtok(NULL, ",")) {
        if (options.percentile_count == MOST_PERCENTILES || !read_long(word, 1, &value) || value > 99)
            return 0;
        options.percentiles[options.percentile_count++] = (int)value;
    }
    return options.percentile_count > 0;
}

static int read_checks(const char *text)
{
    options.checks = 1;
    if (text == NULL)
        return 1;
    options.log_folder = strcmp(text, "log") == 0 ? "." : text + 4;
    return strcmp(text, "log") == 0 || (strncmp(text, "log:", 4) == 0 && text[4] != '\0');
}

static int read_density(const char *text)
{
    char *end;

    options.density = strtod(text, &end);
    return end != text && *end == '\0' && options.density > 0 && options.density <= 1;
}

/* Reads one option; 0 if its value makes no sense. */
static int read_option(int letter, const char *value)
{
    long number = 0;
    int is_read = 1;

    switch (letter) {
    case 'm': return read_sizes(value);
    case 'i': return read_counts(value, 1, &options.iterations);
    case 'x': return read_counts(value, 0, &options.warmup);
    case 'f': options.is_full = 1; return 1;
    case 'c': return read_checks(value);
    case 'u': return read_long(value, 0, &options.checked_warmup);
    case 'T': return read_types(value);
    case 'l': options.is_in_place = 1; return 1;
    case 'k': return read_root(value);
    case 'W': return read_long(value, 1, &options.window);
    case 'V': options.varies_window = 1; return 1;
    case 'p': return read_long(value, 1, &options.pairs);
    case 'R':
        is_read = read_long(value, 0, &number) && number <= 1;
        options.has_rate = (int)number;
        return is_read;
    case 'b':
        options.has_many_buffers = strcmp(value, "multiple") == 0;
        return options.has_many_buffers || strcmp(value, "single") == 0;
    case 't': return read_long(value, 0, &options.tests);
    case 'z': return read_percentiles(value);
    case 'M': return read_bytes(value, &options.memory_limit);
    case 'e': return read_density(value);
    case 'n':
        is_read = read_long(value, 1, &number) && number <= 1000000;
        options.factors = (uint32_t)number;
        return is_read;
    default: return 0;
    }
}

static void print_usage(const struct program *program, FILE *out)
{
    int i;

    fprintf(out, "Usage: %s [options], started by brevity run, mpirun or srun\n\n", job.program);
    for (i = 0; i < WORD_COUNT; i++) {
        const struct word *word = &WORDS[i];
        const char *before = word->argument == required_argument ? " " : "";

        if (strchr(program->letters, word->letter) != NULL || strchr("hv", word->letter) != NULL)
            fprintf(out, "  -%c, --%s%s%-*s %s\n", word->letter, word->name, before,
                    (int)(30 - strlen(word->name) - strlen(before)), word->value, word->help);
    }
}

static int fail_with_usage(const struct program *program, const char *what, const char *which)
{
    if (job.rank == 0) {
        fprintf(stderr, "%s: %s: %s\n", job.program, which, what);
        print_usage(program, stderr);
    }
    return EXIT_FAILURE;
}

static int fail_with_line(const char *which)
{
    if (job.rank == 0)
        fprintf(stderr, "%s: %s means nothing to this program: leave it out\n", job.program, which);
    return EXIT_FAILURE;
}

/* What getopt needs. */
static void declare(char *letters, struct option *names)
{
    static const struct option END;
    int i;

    *letters++ = ':';
    for (i = 0; i < WORD_COUNT; i++) {
        names[i].name = WORDS[i].name;
        names[i].has_arg = WORDS[i].argument;
        names[i].flag = NULL;
        names[i].val = WORDS[i].letter;
        *letters++ = WORDS[i].letter;
        if (WORDS[i].argument != no_argument)
            *letters++ = ':';
        if (WORDS[i].argument == optional_argument)
            *letters++ = ':';
    }
    *letters = '\0';
    names[WORD_COUNT] = END;
}

int read_options(const struct program *program, int argc, char **argv)
{
    char letters[3 * WORD_COUNT + 2], which[3] = "-?";
    struct option names[WORD_COUNT + 1];
    int letter, has_window = 0;

    set_defaults(program->defaults);
    declare(letters, names);
    opterr = 0;
    while ((letter = getopt_long(argc, argv, letters, names, NULL)) != -1) {
        which[1] = (char)(letter == '?' || letter == ':' ? optopt : letter);
        if (letter == '?')
            return fail_with_usage(program, "there is no such option",
                                   optopt == 0 ? argv[optind - 1] : which);
        if (letter == ':')
            return fail_with_usage(program, "expected a value", which);
        if (letter == 'h' || letter == 'v') {
            if (job.rank == 0 && letter == 'h')
                print_usage(program, stdout);
            if (job.rank == 0 && letter == 'v')
                printf("%s %s\n", job.program, brv_version());
            return EXIT_SUCCESS;
        }
        if (strchr(program->letters, letter) == NULL)
            return fail_with_line(which);
        if (!read_option(letter, optarg))
            return fail_with_usage(program, "this value makes no sense", which);
        has_window |= letter == 'W';
    }
    if (optind < argc)
        return fail_with_usage(program, "expected options only", argv[optind]);
    if (options.varies_window && has_window)
        return fail_with_usage(program, "expected one of them", "-V and -W");
    if (2 * options.pairs > job.size && job.size > 1)
        return fail_with_usage(program, "expected at most half as many pairs as ranks", "-p");
    return -1;
}
