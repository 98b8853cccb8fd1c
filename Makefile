# Tutti. Start with `make demo`; `make help` lists the rest.
#
#   DEVELOPER=1   warnings are errors            SAN=address|undefined|thread   sanitizers
#   B=dir         build folder                   PREFIX=/usr/local DESTDIR=     for install
#
# Each module is a folder of src/. Vector kernels (src/tensor/simd) are compiled once for each
# instruction set and chosen at run time, so the program itself needs no more than x86-64.

VERSION := 0.1.0
SAN     ?=
B       ?= build$(if $(SAN),-$(SAN))
PREFIX  ?= /usr/local
DESTDIR ?=
CC      := gcc

MODULES := base tensor store model data optim train cli
LIBS    := yaml-0.1 jansson zlib libcrypto
OPTIONAL_LIBS := libcurl
have    = $(shell pkg-config --exists $(1) 2>/dev/null && echo 1)
PKGS    := $(LIBS) $(foreach l,$(OPTIONAL_LIBS),$(if $(call have,$(l)),$(l)))

WARN    := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla \
           -Wno-missing-field-initializers $(if $(DEVELOPER),-Werror)
HARDEN  := $(if $(SAN),,-D_FORTIFY_SOURCE=2) -fstack-protector-strong -fstack-clash-protection -fcf-protection
CFLAGS  ?= -O2 -g
ALL_CFLAGS = -std=gnu11 $(CFLAGS) $(WARN) $(HARDEN) -fPIC -fno-math-errno -fvisibility=hidden -pthread \
           $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all) \
           $(if $(call have,libcurl),-DTT_HAVE_CURL) \
           -DTT_VERSION='"$(VERSION)"' -Isrc -Iinclude $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
LDFLAGS += -pthread -Wl,-z,relro,-z,now $(if $(SAN),-fsanitize=$(SAN))
LDLIBS  = $(shell pkg-config --libs $(PKGS) 2>/dev/null) -ldl -lm

# ---- objects ----
objs_of   = $(patsubst src/%.c,$(B)/obj/%.o,$(wildcard src/$(1)/*.c src/$(1)/ref/*.c))
ISAS      := generic avx2 avx512
FLAGS_generic :=
FLAGS_avx2    := -mavx2 -mfma -mf16c
FLAGS_avx512  := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mprefer-vector-width=512
SIMD      := $(wildcard src/tensor/simd/*.c)
SIMD_OBJS := $(foreach i,$(ISAS),$(patsubst src/tensor/simd/%.c,$(B)/obj/tensor/simd/%.$(i).o,$(SIMD)))
LIB_OBJS  := $(foreach m,$(filter-out cli,$(MODULES)),$(call objs_of,$(m))) $(SIMD_OBJS)
CLI_OBJS  := $(call objs_of,cli)

all: $(B)/tutti $(B)/libtutti.so

$(B)/tutti: $(CLI_OBJS) $(B)/libtutti.a
	$(CC) $(LDFLAGS) -pie -o $@ $(CLI_OBJS) $(B)/libtutti.a $(LDLIBS)
$(B)/libtutti.a: $(LIB_OBJS)
	rm -f $@ && ar rcs $@ $^
$(B)/libtutti.so: $(LIB_OBJS)
	$(CC) -shared -Wl,-soname,libtutti.so.0 $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(B)/obj/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<
define simd_rule
$(B)/obj/tensor/simd/%.$(1).o: src/tensor/simd/%.c
	@mkdir -p $$(@D)
	$(CC) $(ALL_CFLAGS) -O3 -ffp-contract=fast -fno-trapping-math -fno-stack-protector -fno-stack-clash-protection \
	    -fcf-protection=none $(FLAGS_$(1)) -DTT_ISA=$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(eval $(call simd_rule,$(i))))

# ---- tests: tests/<module>_<what>_test.c; `make unit M=base` builds and runs one module's alone ----
deps_of = $(shell awk -F'[: ]+' '$$1=="$(1)"{for(i=2;i<=NF;i++)print $$i}' src/DEPS) $(1)
$(B)/obj/tests/%.o: tests/%.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -Itests -MMD -MP -c -o $@ $<
define unit_rule
$(B)/test-$(1): $(patsubst tests/%.c,$(B)/obj/tests/%.o,$(wildcard tests/$(1)_*_test.c) tests/test.c) \
    $(foreach m,$(call deps_of,$(1)),$(call objs_of,$(m))) $(if $(filter tensor,$(call deps_of,$(1))),$(SIMD_OBJS))
	$(CC) $(LDFLAGS) -o $$@ $$^ $(LDLIBS)
endef
$(foreach m,$(filter-out cli,$(MODULES)),$(eval $(call unit_rule,$(m))))
unit: $(B)/test-$(M)
	$(B)/test-$(M) $(T)

format:
	clang-format -i $$(git ls-files '*.c' '*.h')
clean:
	rm -rf build build-*

.PHONY: all unit format clean
-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)
