/* base: what every module stands on. Include this one header.
 *
 * It knows nothing of tensors, files of ours or processes of ours; it never prints except through
 * the log. All of it is safe to call from any thread unless a line says otherwise. */
#ifndef TT_BASE_H
#define TT_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"
#include "failpoint.h"
#include "file.h"
#include "log.h"
#include "mem.h"
#include "option.h"
#include "random.h"
#include "team.h"
#include "text.h"
#include "tree.h"
#include "vital.h"

#endif
