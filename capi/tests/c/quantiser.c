/* Quantisers as objects: each format writes what it says, with its error fed back nothing is lost, seeds
 * decide what is random, and what makes no sense is refused. */
#include "compressed.h"

enum { N = 1500, FORMATS = 10, COLUMNS = 30, MOST_BYTES = 4 * N + 4096 };

static brv_quantiser *new_quantiser(brv_quantiser_config config)
{
    brv_quantiser *quantiser = NULL;

    CHECK(brv_quantiser_new(&config, &quantiser) == BRV_OK && quantiser != NULL);
    return quantiser;
}

static brv_quantiser_config config_of(int format)
{
    brv_quantiser_config config = BRV_QUANTISER_INIT((brv_format)format);

    config.columns = COLUMNS;
    config.levels = 100;
    config.seed = 11;
    return config;
}

/* Whole numbers, none of them 0. */
static void fill(float *values, uint32_t seed)
{
    size_t i;

    for (i = 0; i < N; i++) {
        values[i] = (float)number(seed, 0, i, 100);
        if (values[i] == 0)
            values[i] = 50;
    }
}

static size_t encode(brv_quantiser *quantiser, const float *values, unsigned char *message)
{
    size_t bytes;

    CHECK(brv_quantiser_bytes(quantiser, N, &bytes) == BRV_OK && bytes <= MOST_BYTES);
    CHECK(brv_quantiser_encode(quantiser, values, N, message, bytes) == BRV_OK);
    return bytes;
}

/* The mean magnitude of the values of a column that have a sign, or any; 0 for all columns. */
static double mean_of(const float *values, size_t first, size_t step, int sign)
{
    double sum = 0;
    size_t i, count = 0;

    for (i = first; i < N; i += step)
        if (sign == 0 || (sign > 0) == (values[i] > 0)) {
            sum += fabs(values[i]);
            count++;
        }
    return count > 0 ? sum / (double)count : 0;
}

/* What a value may become: a magnitude with its sign, or nearly itself. */
static void is_what_the_format_says(int format, const float *values, const float *decoded, size_t i)
{
    double value = values[i], found = decoded[i];
    int sign = value > 0 ? 1 : -1;

    if (format <= BRV_FORMAT_BF16)
        CHECK(found == value);
    else if (format == BRV_FORMAT_SIGN)
        CHECK(fabs(found - sign * mean_of(values, 0, 1, 0)) < 1e-3);
    else if (format == BRV_FORMAT_SIGN_COLUMNS)
        CHECK(fabs(found - sign * mean_of(values, i % COLUMNS, COLUMNS, 0)) < 1e-3);
    else if (format == BRV_FORMAT_SIGN_PAIRS)
        CHECK(fabs(found - sign * mean_of(values, i % COLUMNS, COLUMNS, sign)) < 1e-3);
    else if (format == BRV_FORMAT_TWO_BIT)
        CHECK(found * sign > 0 && fabs(found) <= 100);
    else if (format == BRV_FORMAT_TERNARY)
        CHECK(found == 0 || found == 100 * sign);
    else if (format == BRV_FORMAT_QSGD)
        CHECK(fabs(found - value) <= sqrt(512.0) * 100 / 100 * 1.001);
    else
        CHECK(fabs(found - value) <= 200.0 / 255 / 2 * 1.001);
}

static void formats(void)
{
    static const size_t expected[FORMATS] = {4 * N, 2 * N, 2 * N, 4 + 188, 4 + 4 * COLUMNS + 188,
                                             4 + 8 * COLUMNS + 188, 8 + 375, 4 + 375, 8 + 12 + N,
                                             4 + 24 + N};
    static float values[N], decoded[N], sums[N];
    static unsigned char message[MOST_BYTES];
    int format;
    size_t i, bytes;

    fill(values, 1);
    values[0] = 100;
    values[1] = -100;
    for (format = 0; format < FORMATS; format++) {
        brv_quantiser *quantiser = new_quantiser(config_of(format));

        bytes = encode(quantiser, values, message);
        CHECK(bytes == expected[format]);
        CHECK(brv_quantiser_decode(quantiser, message, bytes, decoded, N) == BRV_OK);
        for (i = 0; i < N; i++) {
            is_what_the_format_says(format, values, decoded, i);
            sums[i] = 3;
        }
        CHECK(brv_quantiser_add_to(quantiser, message, bytes, -2, sums, N) == BRV_OK);
        for (i = 0; i < N; i++)
            CHECK(fabs(sums[i] - (3 - 2 * decoded[i])) < 1e-3);
        /* Values would be written over the message while it is read. */
        CHECK_FAILS(brv_quantiser_decode(quantiser, sums, bytes, sums, N), BRV_ERR_ARGUMENT,
                    "message and out overlap");
        CHECK_FAILS(brv_quantiser_add_to(quantiser, (char *)(sums + N) - bytes, bytes, 1, sums, N),
                    BRV_ERR_ARGUMENT, "message and dense overlap");
        brv_quantiser_free(quantiser);
    }
}

/* The smallest magnitude, and values clipped at some deviations. */
static void other_settings(void)
{
    static float values[N], decoded[N];
    static unsigned char message[MOST_BYTES];
    brv_quantiser_config smallest = config_of(BRV_FORMAT_SIGN), clipped = BRV_QUANTISER_TERNARY(3);
    brv_quantiser *quantiser;
    float largest = 0;
    size_t i, bytes;

    smallest.magnitude = BRV_MAGNITUDE_MIN;
    fill(values, 1);
    values[7] = -0.25;
    quantiser = new_quantiser(smallest);
    bytes = encode(quantiser, values, message);
    CHECK(brv_quantiser_decode(quantiser, message, bytes, decoded, N) == BRV_OK);
    for (i = 0; i < N; i++)
        CHECK(decoded[i] == (values[i] > 0 ? 0.25 : -0.25));
    brv_quantiser_free(quantiser);
    clipped.clip = 1;
    quantiser = new_quantiser(clipped);
    bytes = encode(quantiser, values, message);
    CHECK(brv_quantiser_decode(quantiser, message, bytes, decoded, N) == BRV_OK);
    for (i = 0; i < N; i++)
        largest = fabsf(decoded[i]) > largest ? fabsf(decoded[i]) : largest;
    CHECK(largest > 40 && largest < 80);
    brv_quantiser_free(quantiser);
}

/* Seeds decide, messages differ, and a loaded state goes on with the next one. */
static void seeds(void)
{
    static float values[N];
    static unsigned char first[MOST_BYTES], second[MOST_BYTES], other[MOST_BYTES], saved[1000];
    int format;

    fill(values, 2);
    for (format = BRV_FORMAT_TWO_BIT; format <= BRV_FORMAT_QSGD; format++) {
        brv_quantiser_config config = config_of(format);
        brv_quantiser *quantiser = new_quantiser(config), *same = new_quantiser(config), *different;
        size_t bytes = encode(quantiser, values, first), size;

        config.seed++;
        different = new_quantiser(config);
        CHECK(encode(same, values, other) == bytes && memcmp(first, other, bytes) == 0);
        CHECK(encode(different, values, other) == bytes);
        CHECK((memcmp(first, other, bytes) != 0) == (format != BRV_FORMAT_TWO_BIT));
        CHECK(brv_quantiser_saved_size(quantiser, &size) == BRV_OK && size > 0 && size < sizeof saved);
        CHECK(brv_quantiser_save(quantiser, saved, size) == BRV_OK);
        CHECK(encode(quantiser, values, second) == bytes);
        CHECK(format == BRV_FORMAT_TWO_BIT || memcmp(first, second, bytes) != 0);
        CHECK(brv_quantiser_load(different, saved, size) == BRV_OK);
        CHECK(encode(different, values, other) == bytes && memcmp(second, other, bytes) == 0);
        CHECK_FAILS(brv_quantiser_load(different, saved, size - 1), BRV_ERR_ARGUMENT, "saved state ends");
        CHECK_FAILS(brv_quantiser_load(different, saved, size + 1), BRV_ERR_ARGUMENT, "1 bytes follow");
        saved[size - 9] ^= 1;
        CHECK_FAILS(brv_quantiser_load(different, saved, size), BRV_ERR_ARGUMENT, "saved state");
        brv_quantiser_free(quantiser);
        brv_quantiser_free(same);
        brv_quantiser_free(different);
    }
}

/* What is read of all messages, and the residual, are together what was handed in. */
static void feedback(void)
{
    static float gradient[N], delivered[N], before[N];
    static unsigned char message[MOST_BYTES];
    const float *values;
    double given[N];
    int format;
    uint32_t step;
    size_t i, n, bytes;

    for (format = 0; format < FORMATS; format++) {
        brv_quantiser *quantiser = new_quantiser(config_of(format));
        brv_residual *residual = NULL;

        if (format == BRV_FORMAT_TERNARY) {
            brv_quantiser_free(quantiser);
            continue;
        }
        CHECK(brv_residual_new(N, &residual) == BRV_OK);
        CHECK(brv_quantiser_bytes(quantiser, N, &bytes) == BRV_OK);
        memset(given, 0, sizeof given);
        memset(delivered, 0, sizeof delivered);
        for (step = 0; step < 5; step++) {
            fill(gradient, step);
            CHECK(brv_quantiser_feed(quantiser, residual, gradient, N, BRV_F32, message, bytes) == BRV_OK);
            CHECK(brv_quantiser_add_to(quantiser, message, bytes, 1, delivered, N) == BRV_OK);
            for (i = 0; i < N; i++)
                given[i] += gradient[i];
        }
        CHECK(brv_residual_view(residual, &values, &n) == BRV_OK && n == N);
        for (i = 0; i < N; i++)
            CHECK(fabs(given[i] - delivered[i] - values[i]) < 0.01);
        /* A message that is put back is as if it had not been written. */
        for (i = 0; i < N; i++)
            before[i] = values[i] + gradient[i];
        CHECK(brv_quantiser_feed(quantiser, residual, gradient, N, BRV_F32, message, bytes) == BRV_OK);
        CHECK(brv_quantiser_put_back(quantiser, residual, message, bytes) == BRV_OK);
        CHECK(brv_residual_view(residual, &values, &n) == BRV_OK);
        for (i = 0; i < N; i++)
            CHECK(fabs(before[i] - values[i]) < 0.01);
        brv_residual_free(residual);
        brv_quantiser_free(quantiser);
    }
}

static void wrong_configs(void)
{
    brv_quantiser_config config = BRV_QUANTISER_QSGD(4, 1);
    brv_quantiser *quantiser = NULL;

#define REFUSES(change, words)                                                                              \
    do {                                                                                                    \
        brv_quantiser_config before = config;                                                               \
        change;                                                                                             \
        CHECK_FAILS(brv_quantiser_new(&config, &quantiser), BRV_ERR_ARGUMENT, words);                       \
        CHECK(quantiser == NULL);                                                                           \
        config = before;                                                                                    \
    } while (0)
    REFUSES(config.size = 4, "config.size is 4");
    REFUSES(config.format = (brv_format)10, "config.format is 10");
    REFUSES(config.levels = 0, "config.levels is 0");
    REFUSES(config.norm = (brv_norm)2, "config.norm is 2");
    REFUSES(config.reserved[0] = 1, "reserved");
    config.format = BRV_FORMAT_SIGN;
    REFUSES(config.magnitude = (brv_magnitude)2, "config.magnitude is 2");
    config.format = BRV_FORMAT_SIGN_PAIRS;
    REFUSES(config.columns = 0, "config.columns is 0");
    config.format = BRV_FORMAT_TERNARY;
    REFUSES(config.clip = -1, "config.clip is -1");
#undef REFUSES
    CHECK_FAILS(brv_quantiser_new(NULL, &quantiser), BRV_ERR_ARGUMENT, "config is NULL");
    CHECK_FAILS(brv_quantiser_new(&config, NULL), BRV_ERR_ARGUMENT, "quantiser is NULL");
    brv_quantiser_free(NULL);
}

/* In every format and by every codec: what is read and what is kept are together what was written. */
static void messages_of_entries(void)
{
    static unsigned char message[MOST_BYTES];
    brv_sparse *sparse = new_sparse(), *kept = new_sparse(), *read = new_sparse(), *all = new_sparse();
    vector entries;
    float given[DIM], said[DIM];
    int format, codec;
    size_t i, bytes, again, count;

    entries_of(3, 0, &entries);
    for (i = 0; i < entries.count; i++)
        if (entries.values[i] == 0)
            entries.values[i] = 1;
    CHECK(brv_sparse_set(sparse, entries.indices, entries.values, entries.count, DIM) == BRV_OK);
    to_dense(sparse, given);
    for (format = 0; format < FORMATS; format++)
        for (codec = 0; codec <= BRV_CODEC_BITMAP; codec++) {
            brv_quantiser *quantiser = new_quantiser(config_of(format));

            CHECK_FAILS(brv_sparse_encode(sparse, quantiser, (brv_codec)codec, kept, message, 20, &bytes),
                        BRV_ERR_ARGUMENT, "capacity is 20");
            CHECK(bytes > 20 && bytes < sizeof message);
            CHECK(brv_sparse_encode(sparse, quantiser, (brv_codec)codec, kept, message, bytes, &again)
                  == BRV_OK);
            CHECK(again == bytes);
            CHECK(brv_sparse_decode(read, quantiser, message, bytes, DIM, K) == BRV_OK);
            CHECK(brv_sparse_count(read, &count, NULL) == BRV_OK && count == entries.count);
            to_dense(read, said);
            CHECK(brv_sparse_add_to(kept, 1, said, DIM) == BRV_OK);
            for (i = 0; i < DIM; i++)
                CHECK(fabs(said[i] - given[i]) < 1e-3);
            CHECK(brv_sparse_count(kept, &count, NULL) == BRV_OK);
            CHECK((count == 0) == (format <= BRV_FORMAT_BF16));
            CHECK(brv_sparse_encode(sparse, quantiser, (brv_codec)codec, NULL, message, bytes, &again)
                  == BRV_OK);
            CHECK(brv_sparse_decode(all, quantiser, message, again, DIM, DIM) == BRV_OK);
            CHECK(brv_sparse_decode(all, quantiser, message, again - 1, DIM, DIM) == BRV_ERR_ARGUMENT);
            CHECK(brv_sparse_decode(all, quantiser, message, again, DIM, 5) == BRV_ERR_ARGUMENT);
            CHECK(brv_sparse_decode(all, quantiser, message, again, DIM + 1, DIM) == BRV_ERR_ARGUMENT);
            CHECK(brv_sparse_count(all, &count, NULL) == BRV_OK && count == entries.count);
            brv_quantiser_free(quantiser);
        }
    brv_sparse_free(sparse);
    brv_sparse_free(kept);
    brv_sparse_free(read);
    brv_sparse_free(all);
}

static void wrong_entries(void)
{
    unsigned char message[64] = {0};
    brv_quantiser *quantiser = new_quantiser(config_of(BRV_FORMAT_F16));
    brv_sparse *sparse = new_sparse();
    size_t bytes;

#define ENCODE(sparse, quantiser, codec, kept, out, bytes) \
    brv_sparse_encode(sparse, quantiser, (brv_codec)codec, kept, out, sizeof message, bytes)
    CHECK_FAILS(ENCODE(NULL, quantiser, 0, NULL, message, &bytes), BRV_ERR_ARGUMENT, "sparse is NULL");
    CHECK_FAILS(ENCODE(sparse, NULL, 0, NULL, message, &bytes), BRV_ERR_ARGUMENT, "quantiser is NULL");
    CHECK_FAILS(ENCODE(sparse, quantiser, 6, NULL, message, &bytes), BRV_ERR_ARGUMENT, "codec is 6");
    CHECK_FAILS(ENCODE(sparse, quantiser, 0, sparse, message, &bytes), BRV_ERR_ARGUMENT, "kept is in use");
    CHECK_FAILS(ENCODE(sparse, quantiser, 0, NULL, message, NULL), BRV_ERR_ARGUMENT, "bytes is NULL");
    CHECK_FAILS(ENCODE(sparse, quantiser, 0, NULL, NULL, &bytes), BRV_ERR_ARGUMENT, "out is NULL");
#undef ENCODE
    CHECK_FAILS(brv_sparse_decode(NULL, quantiser, message, 64, 9, 9), BRV_ERR_ARGUMENT, "sparse is NULL");
    CHECK_FAILS(brv_sparse_decode(sparse, NULL, message, 64, 9, 9), BRV_ERR_ARGUMENT, "quantiser is NULL");
    CHECK_FAILS(brv_sparse_decode(sparse, quantiser, NULL, 64, 9, 9), BRV_ERR_ARGUMENT, "message is NULL");
    CHECK(brv_sparse_decode(sparse, quantiser, message, 64, 9, 9) == BRV_ERR_ARGUMENT);
    brv_sparse_free(sparse);
    brv_quantiser_free(quantiser);
}

/* Bytes that are no message of a format. */
static void wrong_messages(void)
{
    static float values[N], decoded[N];
    static unsigned char message[MOST_BYTES];
    int format;
    size_t i, bytes;

    fill(values, 4);
    for (format = 0; format < FORMATS; format++) {
        brv_quantiser *quantiser = new_quantiser(config_of(format));

        bytes = encode(quantiser, values, message);
        for (i = 0; i < N; i++)
            decoded[i] = 77;
        CHECK(brv_quantiser_decode(quantiser, message, bytes - 1, decoded, N) == BRV_ERR_ARGUMENT);
        CHECK(brv_quantiser_decode(quantiser, message, bytes + 1, decoded, N) == BRV_ERR_ARGUMENT);
        CHECK(brv_quantiser_decode(quantiser, message, bytes, decoded, N - 600) == BRV_ERR_ARGUMENT);
        CHECK(brv_quantiser_decode(quantiser, message, 0, decoded, N) == BRV_ERR_ARGUMENT);
        memset(message, 0xff, sizeof message);
        CHECK(brv_quantiser_decode(quantiser, message, bytes, decoded, N) == BRV_ERR_ARGUMENT);
        CHECK(brv_quantiser_add_to(quantiser, message, bytes, 1, decoded, N) == BRV_ERR_ARGUMENT);
        for (i = 0; i < N; i++)
            CHECK(decoded[i] == 77);
        CHECK_FAILS(brv_quantiser_encode(quantiser, values, N, message, bytes + 1), BRV_ERR_ARGUMENT,
                    "ask brv_quantiser_bytes");
        values[3] = INFINITY;
        CHECK_FAILS(brv_quantiser_encode(quantiser, values, N, message, bytes), BRV_ERR_ARGUMENT, "index 3");
        CHECK(message[0] == 0xff);
        values[3] = 1;
        brv_quantiser_free(quantiser);
    }
}

static void wrong_arguments(void)
{
    static float values[N];
    static unsigned char message[MOST_BYTES];
    brv_quantiser *quantiser = new_quantiser(config_of(BRV_FORMAT_BF16));
    brv_quantiser *ternary = new_quantiser(config_of(BRV_FORMAT_TERNARY));
    brv_residual *residual = NULL;
    size_t bytes;

    CHECK(brv_residual_new(N, &residual) == BRV_OK);
    CHECK_FAILS(brv_quantiser_bytes(NULL, 1, &bytes), BRV_ERR_ARGUMENT, "quantiser is NULL");
    CHECK_FAILS(brv_quantiser_bytes(quantiser, 1, NULL), BRV_ERR_ARGUMENT, "bytes is NULL");
    CHECK_FAILS(brv_quantiser_bytes(quantiser, SIZE_MAX, &bytes), BRV_ERR_ARGUMENT, "no memory");
    CHECK_FAILS(brv_quantiser_encode(NULL, values, N, message, 2 * N), BRV_ERR_ARGUMENT, "quantiser is NULL");
    CHECK_FAILS(brv_quantiser_encode(quantiser, NULL, N, message, 2 * N), BRV_ERR_ARGUMENT, "values is NULL");
    CHECK_FAILS(brv_quantiser_encode(quantiser, values, N, NULL, 2 * N), BRV_ERR_ARGUMENT, "out is NULL");
    CHECK_FAILS(brv_quantiser_decode(NULL, message, 2 * N, values, N), BRV_ERR_ARGUMENT, "quantiser is NULL");
    CHECK_FAILS(brv_quantiser_decode(quantiser, NULL, 2 * N, values, N), BRV_ERR_ARGUMENT, "message is NULL");
    CHECK_FAILS(brv_quantiser_decode(quantiser, message, 2 * N, NULL, N), BRV_ERR_ARGUMENT, "out is NULL");
    CHECK_FAILS(brv_quantiser_add_to(quantiser, message, 2 * N, 1, NULL, N), BRV_ERR_ARGUMENT,
                "dense is NULL");
    CHECK_FAILS(brv_quantiser_feed(quantiser, NULL, values, N, BRV_F32, message, 2 * N), BRV_ERR_ARGUMENT,
                "residual is NULL");
    CHECK_FAILS(brv_quantiser_feed(quantiser, residual, values, N - 1, BRV_F32, message, 2 * N - 2),
                BRV_ERR_ARGUMENT, "the length of the residual");
    CHECK_FAILS(brv_quantiser_feed(quantiser, residual, values, N, BRV_BYTES, message, 2 * N),
                BRV_ERR_ARGUMENT, "expected one of gradients");
    CHECK(brv_quantiser_bytes(ternary, N, &bytes) == BRV_OK);
    CHECK_FAILS(brv_quantiser_feed(ternary, residual, values, N, BRV_F32, message, bytes), BRV_ERR_ARGUMENT,
                "diverges");
    CHECK_FAILS(brv_quantiser_put_back(quantiser, residual, message, N), BRV_ERR_ARGUMENT, "expected");
    CHECK_FAILS(brv_quantiser_put_back(quantiser, NULL, message, 2 * N), BRV_ERR_ARGUMENT,
                "residual is NULL");
    CHECK_FAILS(brv_quantiser_saved_size(NULL, &bytes), BRV_ERR_ARGUMENT, "quantiser is NULL");
    CHECK(brv_quantiser_saved_size(quantiser, &bytes) == BRV_OK && bytes == 0);
    CHECK(brv_quantiser_save(quantiser, NULL, 0) == BRV_OK);
    CHECK(brv_quantiser_load(quantiser, NULL, 0) == BRV_OK);
    CHECK_FAILS(brv_quantiser_save(quantiser, message, 1), BRV_ERR_ARGUMENT, "brv_quantiser_saved_size");
    CHECK_FAILS(brv_quantiser_load(quantiser, message, 1), BRV_ERR_ARGUMENT, "1 bytes follow");
    brv_residual_free(residual);
    brv_quantiser_free(quantiser);
    brv_quantiser_free(ternary);
}

int main(void)
{
    formats();
    other_settings();
    seeds();
    feedback();
    messages_of_entries();
    wrong_entries();
    wrong_configs();
    wrong_messages();
    wrong_arguments();
    return 0;
}
