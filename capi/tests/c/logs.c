/* Joins, and with an argument asks for the library's warnings before. */
#include "check.h"

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1)
        CHECK(brv_log_to_stderr() == BRV_OK && brv_log_to_stderr() == BRV_OK);
    brv_group_free(join());
    return 0;
}
