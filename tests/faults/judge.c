/* judge LEDGER...: what the judge of store/ledger.h says of the ledgers of runs that are over. Exit
 * code 1: one is violated, damaged, or does not tell of an end. */
#include <stdio.h>

#include "store/ledger.h"

int main(int argc, char **argv)
{
    int bad = 0;

    for (int i = 1; i < argc; i++) {
        tt_ledger l = {0};
        tt_bytes text = {0};
        tt_err err = tt_file_read(argv[i], 0, &text);
        if (!err) err = tt_ledger_read(&l, (const char *)text.data, text.size);
        if (err || l.bad || !l.ended) {
            bad++;
            printf("%s: %s\n", argv[i], err ? tt_message() : l.bad ? l.what : "it has no end");
        }
        tt_file_release(&text);
    }
    return bad > 0;
}
