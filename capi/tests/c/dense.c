/* Every dense collective of the list, waiting and started, in place and not, of every type and reduction,
 * against a serial computation, at any number of ranks. */
#include "dense.h"
#include "dense_list.h"

/* One call of a collective. */
typedef struct work {
    brv_group *group;
    const entry *entry;
    brv_type type;
    brv_reduction reduction;
    int32_t root;
    size_t n;
    int is_in_place, is_started;
} work;

static int is(const work *w, const char *name)
{
    size_t length = strlen(name);
    const char *end = w->entry->name + length;

    return strncmp(w->entry->name, name, length) == 0 && (*end == '\0' || strcmp(end, "_v") == 0);
}

static int64_t value(const work *w, int32_t rank, size_t i)
{
    return value_of(w->type, w->reduction, brv_group_size(w->group), rank, i);
}

/* The reduction of element i of all ranks. */
static int64_t reduced(const work *w, size_t i)
{
    int32_t rank, size = brv_group_size(w->group);
    int64_t result = value(w, 0, i);

    for (rank = 1; rank < size; rank++)
        result = combined(w->reduction, result, value(w, rank, i));
    return w->reduction == BRV_AVERAGE ? result / size : fitted(w->type, result);
}

/* The length of the block that one rank has for another, which is the same both ways in place. */
static size_t between(const work *w, int32_t from, int32_t to)
{
    return w->entry->has_lengths ? w->n + (size_t)(from + (w->is_in_place ? to : 2 * to)) % 3 : w->n;
}

/* The length of a rank's block. */
static size_t block(const work *w, int32_t rank)
{
    return w->entry->has_lengths ? w->n + (size_t)rank % 3 : w->n;
}

static size_t sum(const size_t *lengths, int32_t count)
{
    size_t total = 0;

    while (count-- > 0)
        total += lengths[count];
    return total;
}

/* Elements of the input and of the output. */
typedef struct counts {
    size_t sent[MOST_RANKS], received[MOST_RANKS];
    size_t in, out, before; /* before: elements before this rank's block */
    int has_in, has_out;    /* on this rank */
} counts;

static counts count(const work *w)
{
    int32_t rank = brv_group_rank(w->group), size = brv_group_size(w->group), other;
    int is_root = rank == w->root, is_exchange = is(w, "all_to_all");
    counts c;

    for (other = 0; other < size; other++) {
        c.sent[other] = is_exchange ? between(w, rank, other) : block(w, other);
        c.received[other] = is_exchange ? between(w, other, rank) : block(w, other);
    }
    c.before = sum(c.sent, rank);
    c.has_in = !is(w, "broadcast") && !((is(w, "scatter") || is(w, "broadcast_to")) && !is_root);
    c.has_out = !((is(w, "reduce") || is(w, "gather")) && !is_root);
    c.in = c.out = w->n;
    if (is(w, "reduce_scatter") || is(w, "scatter") || is_exchange)
        c.in = sum(c.sent, size);
    else if (w->entry->has_lengths || is(w, "all_gather") || is(w, "gather"))
        c.in = c.sent[rank];
    if (is(w, "all_gather") || is(w, "gather") || is_exchange)
        c.out = sum(c.received, size);
    else if (is(w, "reduce_scatter") || is(w, "scatter"))
        c.out = c.sent[rank];
    return c;
}

/* Element i of what this rank must have. */
static int64_t expected(const work *w, const counts *c, size_t i)
{
    int32_t rank = brv_group_rank(w->group), from = 0, other;

    if (is(w, "broadcast") || is(w, "broadcast_to"))
        return value(w, w->root, i);
    if (is(w, "reduce") || is(w, "all_reduce"))
        return reduced(w, i);
    if (is(w, "reduce_scatter"))
        return reduced(w, c->before + i);
    if (is(w, "scatter"))
        return value(w, w->root, c->before + i);
    while (i >= c->received[from])
        i -= c->received[from++];
    if (!is(w, "all_to_all")) {
        CHECK(is(w, "all_gather") || is(w, "gather"));
        return value(w, from, i);
    }
    for (other = 0; other < rank; other++)
        i += between(w, from, other);
    return value(w, from, i);
}

/* Makes a call, or starts it and waits for it. */
static void carry_out(const work *w, const arguments *a)
{
    brv_request *request = NULL;

    if (!w->is_started) {
        CHECK(w->entry->call(w->group, a, NULL, NULL) == BRV_OK);
        return;
    }
    CHECK(w->entry->call(w->group, a, &request, NULL) == BRV_OK && request != NULL);
    CHECK(brv_request_wait(request, BRV_FOREVER) == BRV_OK);
    brv_request_free(request);
}

/* Allocates exactly as much as a call may use, so that sanitizers find what it uses beside. */
static void *elements(const work *w, size_t n)
{
    void *memory = malloc(n > 0 ? n * SIZES[w->type] : 1);

    CHECK(memory != NULL);
    return memory;
}

static void check(const work *w)
{
    int32_t rank = brv_group_rank(w->group);
    counts c = count(w);
    int is_gathered = is(w, "all_gather") || is(w, "gather");
    /* In place all is in the larger of both. */
    int is_in_place = w->is_in_place && c.has_in && c.has_out && !is(w, "broadcast");
    char *in = c.has_in ? elements(w, c.in) : NULL, *out = c.has_out ? elements(w, c.out) : NULL;
    char *own_in = in, *own_out = out;
    arguments a;
    size_t i;

    if (is_in_place && is_gathered)
        in = out + c.before * SIZES[w->type];
    else if (is_in_place)
        out = in + (is(w, "reduce_scatter") || is(w, "scatter") ? c.before * SIZES[w->type] : 0);
    else if (w->is_in_place && is(w, "reduce"))
        out = in;
    else if (w->is_in_place && is(w, "broadcast_to"))
        in = out;
    for (i = 0; c.has_in && i < c.in; i++)
        store(w->type, in, i, value(w, rank, i));
    for (i = 0; is(w, "broadcast") && rank == w->root && i < c.out; i++)
        store(w->type, out, i, value(w, rank, i));
    memset(&a, 0, sizeof a);
    a.in = in, a.out = out, a.n = w->n, a.lengths = c.sent, a.received = c.received;
    a.type = w->type, a.reduction = w->reduction, a.root = w->root;
    carry_out(w, &a);
    for (i = 0; c.has_out && i < c.out; i++)
        CHECK(load(w->type, out, i) == expected(w, &c, i));
    for (i = 0; c.has_in && !w->is_in_place && i < c.in; i++)
        CHECK(load(w->type, in, i) == value(w, rank, i));
    free(own_in);
    free(own_out);
}

/* A collective in all forms. */
static void in_all_forms(work w, size_t longest)
{
    static const size_t COUNTS[] = {0, 1, 7, 1000, 20011};
    int32_t size = brv_group_size(w.group);
    size_t which;

    for (which = 0; which < sizeof COUNTS / sizeof *COUNTS && COUNTS[which] <= longest; which++)
        for (w.is_in_place = 0; w.is_in_place < 2; w.is_in_place++)
            for (w.is_started = 0; w.is_started < 2; w.is_started++)
                for (w.root = 0; w.root < (w.entry->has_root ? size : 1); w.root++) {
                    w.n = COUNTS[which];
                    check(&w);
                }
}

/* Long vectors only of f32. If it must be short, the first types of their classes only. */
static void test(brv_group *group, const entry *entry, int is_short)
{
    work w;

    memset(&w, 0, sizeof w);
    w.group = group, w.entry = entry;
    if (is(&w, "barrier")) {
        arguments none;
        memset(&none, 0, sizeof none);
        for (w.is_started = 0; w.is_started < 2; w.is_started++)
            carry_out(&w, &none);
        return;
    }
    for (w.type = BRV_F32; w.type <= BRV_BYTES; w.type++) {
        size_t longest = w.type != BRV_F32 ? 7 : is_short ? 1000 : 20011;
        if (is_short && w.type != BRV_F32 && w.type != BRV_I32 && w.type != BRV_BF16 && w.type != BRV_BOOL)
            continue;
        if (!entry->has_reduction)
            in_all_forms(w, longest);
        for (w.reduction = BRV_SUM; entry->has_reduction && w.reduction <= BRV_XOR; w.reduction++)
            if (is_defined(w.type, w.reduction))
                in_all_forms(w, w.reduction == BRV_SUM ? longest : 7);
        w.reduction = (brv_reduction)0;
    }
}

int main(int argc, char **argv)
{
    brv_group *group = join();
    int is_short = argc == 2 && strcmp(argv[1], "short") == 0;
    size_t which;

    CHECK(brv_group_size(group) <= MOST_RANKS);
    for (which = 0; which < sizeof ALL / sizeof *ALL; which++)
        test(group, &ALL[which], is_short);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
