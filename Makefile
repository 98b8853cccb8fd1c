# Tutti. `make demo` sets everything up and trains something; `make check` runs every test.
#
#   DEVELOPER=1   warnings are errors            SAN=address|undefined|thread   sanitizers
#   B=dir         build folder                   PREFIX=/usr/local DESTDIR=     for install
#   MPI=openmpi|mpich                            which MPI carries worlds of several processes
#   WIDE=1        the kernels of AVX-512 from AVX2 instructions, to test them on CPUs without
#
# Each module is a folder of src/. Vector kernels (src/tensor/simd) are compiled once for each
# instruction set and chosen at run time, so the program itself needs no more than x86-64.

VERSION := 0.1.0
SAN     ?=
MPI     ?= openmpi
B       ?= build$(if $(filter mpich,$(MPI)),-mpich)$(if $(SAN),-$(SAN))
PREFIX  ?= /usr/local
DESTDIR ?=
CC      := gcc

MODULES := base tensor comm store model data optim strategy cluster train api cli
LIBS    := yaml-0.1 jansson zlib libcrypto libzmq $(if $(filter mpich,$(MPI)),mpich,ompi-c)
OPTIONAL_LIBS := libcurl libpng libdeflate hwloc libpcre2-8
have    = $(shell pkg-config --exists $(1) 2>/dev/null && echo 1)
PKGS    := $(LIBS) $(foreach l,$(OPTIONAL_LIBS),$(if $(call have,$(l)),$(l)))

WARN    := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla \
           -Wno-missing-field-initializers $(if $(DEVELOPER),-Werror)
HARDEN  := $(if $(SAN),,-D_FORTIFY_SOURCE=2) -fstack-protector-strong -fstack-clash-protection -fcf-protection
# Sanitized, -O1 compiles in half the time of -O2.
CFLAGS  ?= $(if $(SAN),-O1 -g1,-O2 -g)
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
ALL_CFLAGS = -std=gnu11 $(CFLAGS) $(WARN) $(HARDEN) -fPIC -fno-math-errno -fvisibility=hidden -pthread \
           $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all) \
           $(if $(filter libcurl,$(PKGS)),-DTT_HAVE_CURL) $(if $(filter libpng,$(PKGS)),-DTT_HAVE_PNG) \
           $(if $(filter libdeflate,$(PKGS)),-DTT_HAVE_DEFLATE) $(if $(filter hwloc,$(PKGS)),-DTT_HAVE_HWLOC) $(if $(filter libpcre2-8,$(PKGS)),-DTT_HAVE_PCRE2) $(if $(filter mpich,$(MPI)),-DTT_MPICH) $(if $(WIDE),-DTT_WIDE) \
           -DTT_VERSION='"$(VERSION)"' -Isrc -Iinclude -I$(B)/gen $(PKG_CFLAGS)
LDFLAGS += -pthread -Wl,-z,relro,-z,now $(if $(SAN),-fsanitize=$(SAN))
LDLIBS  := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -ldl -lm

all: $(B)/tutti $(B)/libtutti.so

# ---- objects ----
# Of a module or, as DEPS names some, of one file of it.
objs_of   = $(patsubst src/%.c,$(B)/obj/%.o,$(wildcard src/$(1)/*.c src/$(1)/ref/*.c src/$(1).c))
ISAS      := generic avx2 avx512
FLAGS_generic :=
FLAGS_avx2    := -mavx2 -mfma -mf16c
FLAGS_avx512  := $(if $(WIDE),$(FLAGS_avx2) -Wno-psabi,-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mprefer-vector-width=512)
# In bf16 there are tables of their own, from the same source, and ways of multiplying beside the widened one: of them
# only what multiplies is compiled. "emulated" is tiles in plain C, for tests where there are none; "trapped" has their
# instructions among those of AVX2, for a test that does what the CPU does not know (tests/tensor_tiles_test.c).
BF16_ISAS := $(ISAS:%=%_bf16)
PRODUCTS  := avx512_amx avx512_dot emulated trapped
FLAGS_avx512_amx := $(FLAGS_avx512) -DTT_ISA=avx512_bf16 -DTT_TILES $(if $(WIDE),-DTT_TILES_EMULATED,-DTT_512_BF16 -mavx512bf16 -mamx-tile -mamx-bf16)
FLAGS_avx512_dot := $(FLAGS_avx512) -DTT_ISA=avx512_bf16 $(if $(WIDE),-DTT_TILES -DTT_TILES_EMULATED,-DTT_DOT -DTT_512_BF16 -mavx512bf16)
FLAGS_emulated   := -DTT_ISA=generic_bf16 -DTT_TILES -DTT_TILES_EMULATED
FLAGS_trapped    := $(FLAGS_avx2) -DTT_ISA=avx2_bf16 -DTT_TILES -mamx-tile -mamx-bf16
# Kernels know no MPI: builds for either have them in common. Nor does WIDE change others than those of AVX-512. And those
# that nothing will run are not sanitized: such builds take them from PLAIN. The tests of threads run the best there are.
K         := $(patsubst %-mpich,%,$(B))
PLAIN     := build
has        = $(shell grep -m 1 -wo $(1) /proc/cpuinfo)
DEAD      := $(if $(SAN),$(if $(or $(WIDE),$(call has,avx512f)),,avx512%) $(if $(filter thread,$(SAN)),$(if $(call has,avx2),generic%)))
is_dead    = $(and $(DEAD),$(filter $(DEAD),$(1)))
dir_of     = $(if $(call is_dead,$(1)),$(PLAIN),$(if $(and $(WIDE),$(filter generic% avx2%,$(1))),$(patsubst %-wide,%,$(B)),$(K)))
SIMD      := $(notdir $(basename $(wildcard src/tensor/simd/*.c)))
SIMD_BF16 := $(filter-out attend conv dense_dx lanes% nhwc%,$(SIMD))
simd_objs  = $(foreach i,$(1),$(patsubst %,$(call dir_of,$(i))/obj/tensor/simd/%.$(i).o,$(2)))
MULTIPLY  := table recur $(filter bf16_%,$(SIMD))
SIMD_OBJS := $(call simd_objs,$(ISAS),$(filter-out bf16_%,$(SIMD))) $(call simd_objs,$(BF16_ISAS),$(SIMD_BF16)) \
             $(call simd_objs,$(filter avx512%,$(PRODUCTS)),$(MULTIPLY)) \
             $(patsubst src/%.c,$(B)/obj/%.bf16.o,$(wildcard src/tensor/ref/*.c))
EMULATED  := $(call simd_objs,emulated,$(MULTIPLY))
TRAPPED   := $(call simd_objs,trapped,$(MULTIPLY))
LIB_OBJS  := $(foreach m,$(filter-out cli,$(MODULES)),$(call objs_of,$(m))) $(SIMD_OBJS)
CLI_OBJS  := $(call objs_of,cli)

$(B)/tutti: $(CLI_OBJS) $(B)/libtutti.a
	$(CC) $(LDFLAGS) -pie -o $@ $(CLI_OBJS) $(B)/libtutti.a $(LDLIBS)
$(B)/libtutti.a: $(LIB_OBJS)
	@rm -f $@
	ar rcs $@ $^
$(B)/libtutti.so: $(LIB_OBJS)
	$(CC) -shared -Wl,-soname,libtutti.so.0 $(LDFLAGS) -o $@ $^ $(LDLIBS)
	ln -sf libtutti.so $(B)/libtutti.so.0

$(B)/obj/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<
# Kernels are leaves that touch no user input: they do without stack guards. Sanitized, -O3 takes minutes a file; and of
# unrolled loops a debugger wants no more than lines.
define simd_rule
$(call dir_of,$(1))/obj/tensor/simd/%.$(1).o: src/tensor/simd/%.c
	@mkdir -p $$(@D)
	$(if $(call is_dead,$(1)),+$(MAKE) --no-print-directory SAN= B=$(PLAIN) $$@,$(CC) $(ALL_CFLAGS) $(if $(filter -g%,$(CFLAGS)),-g1) $(if $(SAN),-O1,-O3) -ffp-contract=fast -fno-trapping-math -fno-stack-protector -fno-stack-clash-protection \
	    -fcf-protection=none $(2) -MMD -MP -c -o $$@ $$<)
endef
bf16_flags = -DTT_ACT_BF16 -DTT_TABLE='"$(subst _,-,$(1))"'
$(foreach i,$(ISAS),$(eval $(call simd_rule,$(i),$(FLAGS_$(i)) -DTT_ISA=$(i))))
$(foreach i,$(ISAS),$(eval $(call simd_rule,$(i)_bf16,$(FLAGS_$(i)) -DTT_ISA=$(i)_bf16 $(call bf16_flags,$(i)_bf16))))
$(foreach p,$(PRODUCTS),$(eval $(call simd_rule,$(p),$(FLAGS_$(p)) -DTT_PRODUCT=$(p) $(call bf16_flags,$(p)))))
$(B)/obj/%.bf16.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -DTT_ACT_BF16 -MMD -MP -c -o $@ $<
EXAMPLES := $(wildcard examples/*.yaml)
$(B)/gen/examples.h: tools/embed-examples $(EXAMPLES)
	@mkdir -p $(@D)
	tools/embed-examples $(EXAMPLES) >$@.tmp && mv $@.tmp $@
$(B)/obj/cli/init.o: $(B)/gen/examples.h

# ---- tests: tests/<module>_<what>_test.c; `make unit M=base` builds and runs one module's alone ----
deps_of = $(shell awk -F'[: ]+' '$$1=="$(1)"{for(i=2;i<=NF;i++)print $$i}' src/DEPS) $(1)
UNITS   := $(filter-out cli,$(MODULES))
$(B)/obj/tests/%.o: tests/%.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -DTT_SOURCE_DIR='"$(CURDIR)"' -Itests -MMD -MP -c -o $@ $<
define unit_rule
$(B)/test-$(1): $(patsubst tests/%.c,$(B)/obj/tests/%.o,$(wildcard tests/$(1)_*_test.c) tests/test.c) \
    $(foreach m,$(call deps_of,$(1)),$(call objs_of,$(m))) $(if $(filter tensor,$(call deps_of,$(1))),$(SIMD_OBJS)) \
    $(if $(filter tensor model,$(1)),$(EMULATED)) $(if $(filter tensor,$(1)),$(TRAPPED))
	$(CC) $(LDFLAGS) -o $$@ $$^ $(LDLIBS)
endef
$(foreach m,$(UNITS),$(eval $(call unit_rule,$(m))))
# The tests of comm/ as a program for ranks that are processes: tests/world/run starts it.
$(B)/test-comm-mpi: tests/comm_world_test.c tests/test.h $(foreach m,base comm,$(call objs_of,$(m)))
	$(CC) $(ALL_CFLAGS) -DCOMM_WORLD_TEST_MPI -DTT_SOURCE_DIR='"$(CURDIR)"' -Itests -o $@ $< \
	    $(foreach m,base comm,$(call objs_of,$(m))) $(LDFLAGS) $(LDLIBS)
unit: $(B)/test-$(M)
	$(B)/test-$(M) $(T)
units: $(UNITS:%=$(B)/test-%)

# The library's example programs, linked as a user would.
C_EXAMPLES := $(patsubst examples/c/%.c,$(B)/examples/%,$(wildcard examples/c/*.c))
$(B)/examples/%: examples/c/%.c $(B)/libtutti.so include/tutti.h
	@mkdir -p $(@D)
	$(CC) -std=c11 -Wall -Wextra $(CFLAGS) $(if $(SAN),-fsanitize=$(SAN)) -Iinclude -o $@ $< -L$(B) -ltutti -Wl,-rpath,'$$ORIGIN/..'

# Fuzzing: `make fuzz` runs each target for FUZZ_S seconds (clang); its corpus is replayed by check.
FUZZ_S       ?= 60
FUZZ_TARGETS := $(patsubst tests/fuzz/%_fuzz.c,%,$(wildcard tests/fuzz/*_fuzz.c))
$(B)/replay-%: tests/fuzz/%_fuzz.c tests/fuzz/replay.c $(B)/libtutti.a
	$(CC) $(ALL_CFLAGS) -o $@ tests/fuzz/$*_fuzz.c tests/fuzz/replay.c $(B)/libtutti.a $(LDFLAGS) $(LDLIBS)
replays: $(FUZZ_TARGETS:%=$(B)/replay-%)
# Weights are loaded into a model, for which model/ and the kernels will do as they are.
FUZZ_SRC_hf  := src/train/hf.c src/train/weights.c
build-fuzz/fuzz-hf: $(call objs_of,model) $(filter-out %/shape.o,$(call objs_of,tensor)) $(SIMD_OBJS)
build-fuzz/fuzz-%: tests/fuzz/%_fuzz.c
	@mkdir -p $(@D)
	clang -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize=function -Wno-unknown-attributes -std=gnu11 -DTT_VERSION='"fuzz"' $(if $(filter libpcre2-8,$(PKGS)),-DTT_HAVE_PCRE2) -Isrc -Iinclude \
	    $(PKG_CFLAGS) -o $@ $< src/base/*.c src/comm/*.c src/cluster/*.c src/data/*.c src/store/*.c src/tensor/shape.c $(FUZZ_SRC_$*) $(filter %.o,$^) $(LDLIBS) -lpthread
fuzz:
	tools/setup fuzz
	+tools/fuzz $(FUZZ_S) $(FUZZ_TARGETS)

# ---- the two commands, and the others ----
demo:
	tools/setup build demo
	+$(MAKE) --no-print-directory -j$$(nproc) all
	tools/demo $(B)/tutti
check:
	tools/setup build demo check
	+tools/check $(B)
bench:
	tools/setup build bench
	+$(MAKE) --no-print-directory -j$$(nproc) all $(B)/bench-exchange $(B)/bench-rows
	bench/run --program $(B)/tutti --out $(B)/bench.md
	bench/world --program $(B)/tutti --exchange $(B)/bench-exchange --out $(B)/bench.md
	bench/tables --program $(B)/tutti --rows $(B)/bench-rows --out $(B)/bench.md

# Trainings of real processes, disturbed at random by CHAOS_FAULTS faults, in at most CHAOS_MIN minutes; SEED=N repeats one.
CHAOS_FAULTS ?= 1000
CHAOS_MIN    ?= 90
SEED      ?= 0
chaos:
	tools/setup build check
	+$(MAKE) --no-print-directory -j$$(nproc) all
	+$(MAKE) --no-print-directory -j$$(nproc) all MPI=mpich
	tests/chaos/run --program build/tutti --mpich build-mpich/tutti --faults $(CHAOS_FAULTS) --minutes $(CHAOS_MIN) --seed $(SEED) --log build/chaos.txt

# Sums of long vectors over ranks: bench/world starts it.
$(B)/bench-exchange: bench/exchange.c $(B)/libtutti.a
	$(CC) $(ALL_CFLAGS) -o $@ $< $(B)/libtutti.a $(LDFLAGS) $(LDLIBS)

# The reads and writes of a step on a table, alone: bench/tables starts it.
$(B)/bench-rows: bench/rows.c $(B)/libtutti.a
	$(CC) $(ALL_CFLAGS) -O3 -o $@ $< $(B)/libtutti.a $(LDFLAGS) $(LDLIBS)

# The layers of tests/cases.h one by one, with each set of kernels.
$(B)/bench-layers: bench/layers.c tests/cases.h $(B)/libtutti.a
	$(CC) $(ALL_CFLAGS) -Itests -o $@ $< $(B)/libtutti.a $(LDFLAGS) $(LDLIBS)
bench-layers: $(B)/bench-layers
	$(B)/bench-layers '$(T)' $(P)

COMMANDS = $$($(B)/tutti man --list)
install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include \
	    $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
	    $(DESTDIR)$(PREFIX)/share/doc/tutti/examples $(DESTDIR)$(PREFIX)/share/doc/tutti/docs
	install -m 755 $(B)/tutti $(DESTDIR)$(PREFIX)/bin/tutti
	install -m 644 $(B)/libtutti.a $(DESTDIR)$(PREFIX)/lib/libtutti.a
	install -m 755 $(B)/libtutti.so $(DESTDIR)$(PREFIX)/lib/libtutti.so.$(VERSION)
	ln -sf libtutti.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libtutti.so.0
	ln -sf libtutti.so.0 $(DESTDIR)$(PREFIX)/lib/libtutti.so
	install -m 644 include/tutti.h $(DESTDIR)$(PREFIX)/include/tutti.h
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@PKGS@|$(PKGS)|' tools/tutti.pc.in \
	    >$(DESTDIR)$(PREFIX)/lib/pkgconfig/tutti.pc
	install -m 644 $(EXAMPLES) examples/c/*.c $(DESTDIR)$(PREFIX)/share/doc/tutti/examples
	install -m 644 README.md $(DESTDIR)$(PREFIX)/share/doc/tutti
	install -m 644 docs/*.md $(DESTDIR)$(PREFIX)/share/doc/tutti/docs
	$(B)/tutti man >$(DESTDIR)$(PREFIX)/share/man/man1/tutti.1
	for c in $(COMMANDS); do $(B)/tutti man $$c >$(DESTDIR)$(PREFIX)/share/man/man1/tutti-$$c.1; done
	$(B)/tutti completion bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/tutti

format:
	clang-format -i $$(git ls-files '*.c' '*.h')
clean:
	rm -rf build build-*
help:
	@echo "make demo     install what is missing, build, train a CNN on Fashion-MNIST"
	@echo "make check    the same, then all tests"
	@echo "make          build $(B)/tutti and the library"
	@echo "make chaos    trainings that are disturbed at random, CHAOS_FAULTS=1000 times"
	@echo "make bench    speed side by side with PyTorch (installs it); 45 minutes"
	@echo "make bench-layers T=conv   each layer of the test cases alone; P=bf16"
	@echo "make fuzz     each parser for $(FUZZ_S) s"
	@echo "make install  to PREFIX=$(PREFIX), below DESTDIR"
	@echo "make unit M=model T=dropout   one module's tests, those whose name contains T"

.PHONY: all unit units replays fuzz demo check chaos bench bench-layers install format clean help
-include $(shell find $(sort $(B)/obj $(foreach i,generic avx2 avx512,$(call dir_of,$(i))/obj/tensor/simd)) -name '*.d' 2>/dev/null)
