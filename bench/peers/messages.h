/* What the programs share that measure messages between ranks 2i and 2i+1. */

static int peer;

static void find_peer(void)
{
    peer = rank ^ 1;
    if (world < 2 || world % 2 != 0)
        fail("%d ranks are no pairs", world);
}

/* For `count` messages; on huge pages from messages of 2 MiB on, as Brevity's pool of buffers gives them. */
static void *message_buffer(size_t bytes, int count)
{
    return buffer_on(bytes < HUGE_PAGE ? PAGE : HUGE_PAGE, bytes * count);
}

static unsigned char pattern(int sender, size_t index)
{
    return (unsigned char)(index * 7 + (size_t)sender * 101 + 31);
}

static void fill(unsigned char *memory, size_t bytes, int sender)
{
    for (size_t index = 0; index < bytes; index++)
        memory[index] = pattern(sender, index);
}

static void check(const unsigned char *memory, size_t bytes, int sender)
{
    for (size_t index = 0; index < bytes; index++)
        if (memory[index] != pattern(sender, index))
            fail("byte %zu of a message of %zu is wrong", index, bytes);
}

/* Half of the time of a round trip, a sample for each batch. `ping_pong` makes `count` of them. */
static void latency(int bytes, int iterations, int warmup,
                    void (*ping_pong)(unsigned char *out, unsigned char *in, int bytes, int count))
{
    unsigned char *out = message_buffer(bytes, 1), *in = message_buffer(bytes, 1);
    double times[MOST_SAMPLES];
    int samples = iterations < MOST_SAMPLES ? iterations : MOST_SAMPLES;
    fill(out, bytes, rank);
    ping_pong(out, in, bytes, 1);
    check(in, bytes, peer);
    ping_pong(out, in, bytes, warmup);
    for (int sample = 0; sample < samples; sample++) {
        int count = share(iterations, sample, samples);
        double start = now();
        ping_pong(out, in, bytes, count);
        times[sample] = (now() - start) * 1e6 / count / 2;
    }
    check(in, bytes, peer);
    answer(times, rank % 2 == 0 ? samples : 0);
    free(out);
    free(in);
}
