// The guard machine: whether what a call reads is what it was, asked in machine code.
//
// One fixed source without headers of Python or torch. What it calls comes in a table; where words of objects lie was
// found by experiments (layouts.py). A program is rows over registers. Static rows start at objects that never change
// place; each leaves stamps, words of memory that are another once the row may not hold any more. A check compares
// stamps, evaluates the rows that have none, and gives the values of some registers, or None: the caller asks exactly.
//
// A machine keeps no object of the user's alive but constants. It looks at memory in the order in which objects lead to
// each other: a stamp is compared only after those that tell that its memory is still what it was. The version of a
// dictionary is never used twice, so what an unchanged one holds is what it held. Other words are addresses, which may
// be used again: then the stamps of what is there now tell. While rows are evaluated, what they find is referred to.

typedef long long word;
struct object { word count; object* type; };

struct table {  // the order of machine.py
  object* (*tuple_item)(object*, word);
  word (*tuple_size)(object*);
  object* (*dict_item)(object*, object*);
  word (*dict_size)(object*);
  int (*dict_has)(object*, object*);
  int (*dict_next)(object*, word*, object**, object**);
  object* (*list_item)(object*, word);
  int (*list_set)(object*, word, object*);
  word (*list_size)(object*);
  object* (*attribute)(object*, object*);
  int (*equal)(object*, object*, int);
  object* (*call)(object*, object*);
  object* (*failed)();
  void (*clear)();
  object* (*new_tuple)(word);
  int (*tuple_set)(object*, word, object*);
  void (*hold)(object*);
  void (*release)(object*);
  char* (*bytes)(object*);
  double (*real)(object*);
  object *none, *yes, *dict, *ordered, *list, *tuple, *text, *number, *real_type, *tensor, *parameter;
};

struct layouts {  // in bytes from an object's start; 0: not known
  word version;      // of a dictionary: another number after each change
  word size, items;  // of a list: its length, where its items are
  word length, first;  // of a tuple: its length, its first item
  word under;        // of a tensor's object: the tensor
  word words, bits[32];  // of a tensor: how many words are looked at, and which bits of each tell its looks
  word dimensions, most;  // the word with the number of dimensions; above `most` sizes lie elsewhere
  word autograd;          // the word that leads to what autograd keeps, null or
  word kind;              // with this first word
  word asks;              // the byte that says whether a gradient is asked for
  word leaves, leaf[4];   // words that are null for leaves
  word attributes[2];     // of a tensor's object: words that are null if it has no attributes, the second a dictionary
};

struct query { word (*function)(word); word argument, how; };
enum { AS_BYTE, AS_NUMBER, FIRST_WORD, FIRST_BYTE, SPAN, CALLED };

enum { ARGUMENT, KEYWORD, OBJECT, ITEM, ATTRIBUTE, EVALUATE, TYPE, IS, CONSTANT, LENGTH, ABSENT, PRESENT, KEYS,
       SAME, APART, LOOK, BARE, ARGUMENTS, PREDICATE };

struct row { word kind, to, a, b, x, y, z, group; };
struct stamp { word* at; word value; };
struct range { word first, count; };

struct program {  // at the start of a buffer; places are bytes from there
  word busy, statics, rows, registers, stamps, capacity, valid, constants, results, queries, always;
  word at_rows, at_registers, at_stamps, at_ranges, at_results, at_queries, at_state, at_always, at_heads, at_constants;
  word fulls, partials, hits;
};

static table py;
static layouts lay;

extern "C" void lamina_guards_prepare(const table* functions, const layouts* found) { py = *functions; lay = *found; }

template <class T> static inline T* part(program* p, word at) { return (T*)((char*)p + at); }
static inline word at(const void* start, word offset) { return *(const word*)((const char*)start + offset); }
static inline bool is_dict(object* o) { return o->type == py.dict || o->type == py.ordered; }

struct machine {
  program* p;
  object *kept, *objects, *args, *kwargs;
  object** regs;
  object* constant(word index) { return py.list_item(objects, index); }
};

static word asked(const query& q) {
  word found = q.function(q.argument);
  switch (q.how) {
    case AS_BYTE: return found & 0xff;
    case AS_NUMBER: return found & 0xffffffff;
    case FIRST_WORD: return *(word*)found;
    case FIRST_BYTE: return ((unsigned char*)found)[q.argument];
    default: return ((word*)found)[1] - ((word*)found)[0];
  }
}

static bool same_state(program* p) {
  query* queries = part<query>(p, p->at_queries);
  word* wanted = part<word>(p, p->at_state);
  for (word i = 0; i < p->queries; i++) {
    if (queries[i].how != CALLED) {
      if (asked(queries[i]) != wanted[i]) return false;
      continue;
    }
    object* found = py.call((object*)queries[i].argument, 0);
    if (!found) return false;
    object* known = (object*)wanted[i];
    bool same = found == known || (found->type == known->type && py.equal(found, known, 2) == 1);
    py.release(found);
    if (!same) return false;
  }
  return true;
}

// Whether a tensor has one of the known heads: `head` is a count, then for each the words, gradient and leaf.
static bool looks(object* t, const word* head) {
  if (!lay.under || (t->type != py.tensor && t->type != py.parameter)) return false;
  const word* under = (const word*)at(t, lay.under);
  if (!under || under[lay.dimensions] > lay.most) return false;
  word asks = 0, leaf = 1;
  if (const char* autograd = (const char*)under[lay.autograd]) {
    if (*(const word*)autograd != lay.kind) return false;
    for (word i = 0; i < lay.leaves; i++) leaf &= at(autograd, lay.leaf[i]) == 0;
    asks = !leaf || autograd[lay.asks];
  }
  const word* known = head + 1;
  for (word i = 0; i < *head; i++, known += lay.words + 2) {
    word differ = (known[lay.words] ^ asks) | (known[lay.words + 1] ^ leaf);
    for (word k = 0; k < lay.words; k++) differ |= (under[k] & lay.bits[k]) ^ known[k];
    if (!differ) return true;
  }
  return false;
}

static bool is_bare(object* t) {
  if (!lay.attributes[1] || (t->type != py.tensor && t->type != py.parameter) || at(t, lay.attributes[0])) return false;
  object* own = (object*)at(t, lay.attributes[1]);
  return !own || (is_dict(own) && py.dict_size(own) == 0);
}

static bool equals(object* a, object* b) {
  if (a == b) return true;
  if (a->type != b->type) return false;
  if (a->type == py.real_type) {
    double x = py.real(a), y = py.real(b);
    return __builtin_memcmp(&x, &y, sizeof x) == 0;
  }
  return (a->type == py.text || a->type == py.number) && py.equal(a, b, 2) == 1;
}

static bool has_keys(object* dict, object* keys) {
  if (py.dict_size(dict) != py.tuple_size(keys)) return false;
  word place = 0, number = 0;
  object *key, *value;
  while (py.dict_next(dict, &place, &key, &value))
    if (number >= py.tuple_size(keys) || !equals(key, py.tuple_item(keys, number++))) return false;
  return true;
}

static object* item(machine& m, const row& r, object* owner) {
  if (is_dict(owner)) return py.dict_item(owner, m.constant(r.x));
  if (owner->type == py.list) return r.y >= 0 && r.y < py.list_size(owner) ? py.list_item(owner, r.y) : 0;
  if (owner->type == py.tuple) return r.y >= 0 && r.y < py.tuple_size(owner) ? py.tuple_item(owner, r.y) : 0;
  return 0;
}

static object* called(machine& m, const row& r) {  // r.x a function, r.y a tuple's place, whose registers follow r.a
  object* given = py.new_tuple(r.b);
  if (!given) return 0;
  const word* numbers = part<word>(m.p, r.a);
  for (word i = 0; i < r.b; i++) {
    py.hold(m.regs[numbers[i]]);
    py.tuple_set(given, i, m.regs[numbers[i]]);
  }
  object* found = py.call(m.constant(r.x), given);
  py.release(given);
  return found;
}

static word length(object* o) {
  if (is_dict(o)) return py.dict_size(o);
  if (o->type == py.list) return py.list_size(o);
  return o->type == py.tuple ? py.tuple_size(o) : -1;
}

static bool holds(machine& m, const row& r) {
  object* a = m.regs[r.a];
  switch (r.kind) {
    case TYPE: return (word)a->type == r.x;
    case IS: return (word)a == r.x;
    case CONSTANT: return equals(a, m.constant(r.x));
    case LENGTH: return length(a) == r.x;
    case ABSENT: return is_dict(a) && py.dict_has(a, m.constant(r.x)) == 0;
    case PRESENT: return is_dict(a) && py.dict_has(a, m.constant(r.x)) == 1;
    case KEYS: return a->type == py.dict && has_keys(a, m.constant(r.x));
    case SAME: return a == m.regs[r.b];
    case APART: return a != m.regs[r.b];
    case LOOK: return looks(a, part<word>(m.p, r.x));
    case BARE: return is_bare(a);
    case ARGUMENTS: return py.tuple_size(m.args) == r.x && has_keys(m.kwargs, m.constant(r.y));
    default: return false;
  }
}

// What a row that reads finds: a new reference if `owned` comes back true.
static object* read(machine& m, const row& r, bool& owned) {
  owned = false;
  switch (r.kind) {
    case ARGUMENT: return r.x < py.tuple_size(m.args) ? py.tuple_item(m.args, r.x) : 0;
    case KEYWORD: return py.dict_item(m.kwargs, m.constant(r.x));
    case OBJECT: return m.constant(r.x);
    case ITEM: return item(m, r, m.regs[r.a]);
    case ATTRIBUTE: owned = true; return py.attribute(m.regs[r.a], m.constant(r.x));
    case EVALUATE: owned = true; return called(m, r);
    default: return 0;
  }
}

static void push(program* p, word* address, word value, word first = 0, word count = 0) {
  if (p->stamps >= p->capacity) { p->valid = -1; return; }
  part<stamp>(p, p->at_stamps)[p->stamps] = {address, value};
  part<range>(p, p->at_ranges)[p->stamps++] = {first, count};
}

static void push_word(program* p, void* start, word offset) { push(p, (word*)((char*)start + offset), at(start, offset)); }

static void each_time(program* p, const row& r) {
  part<word>(p, p->at_always)[p->always++] = &r - part<row>(p, p->at_rows);
}

static void stamp_length(machine& m, object* owner) {
  push_word(m.p, owner, sizeof(word));  // its class
  push_word(m.p, owner, owner->type == py.list ? lay.size : lay.length);
}

static void stamp_item(machine& m, const row& r) {
  object* owner = m.regs[r.a];
  stamp_length(m, owner);
  if (owner->type == py.list) {
    push_word(m.p, owner, lay.items);
    push_word(m.p, (void*)at(owner, lay.items), r.y * sizeof(word));
  } else push_word(m.p, owner, lay.first + r.y * sizeof(word));
}

static void stamp_attribute(machine& m, const row& r, object* found) {
  object* owner = m.regs[r.a];
  if (!r.y || (r.z && (word)owner->type != r.z)) { m.p->valid = -1; return; }
  word there = at(owner, r.y);
  if (there != (word)found && (there || found != py.none)) { m.p->valid = -1; return; }
  push_word(m.p, owner, sizeof(word));
  push_word(m.p, owner, r.y);
}

// Evaluate all static rows, with new stamps. Everything found is referred to until it has been compared once more.
static bool evaluate_all(machine& m) {
  program* p = m.p;
  row* rows = part<row>(p, p->at_rows);
  p->stamps = p->always = 0;
  p->valid = 1;
  p->fulls++;
  word covered = -1;
  for (word i = 0; i < p->statics; i++) {
    const row& r = rows[i];
    if (r.group && is_dict(m.regs[r.a])) {
      word* version = (word*)((char*)m.regs[r.a] + lay.version);
      push(p, version, *version, i, r.group);
      covered = i + r.group;
    }
    if (r.kind >= TYPE) {
      if (!holds(m, r)) return false;
      if (r.kind == TYPE && r.y) push(p, (word*)((char*)m.regs[r.a] + sizeof(word)), r.x);
      if (r.kind == LENGTH && i >= covered) stamp_length(m, m.regs[r.a]);
      if (r.kind == LOOK || r.kind == BARE) each_time(p, r);
      continue;
    }
    bool owned;
    object* found = read(m, r, owned);
    if (!found) return false;
    if (!owned) py.hold(found);
    m.regs[r.to] = found;
    py.list_set(m.kept, r.to, found);
    if (r.kind == ITEM && i >= covered) stamp_item(m, r);
    if (r.kind == ATTRIBUTE) stamp_attribute(m, r, found);
  }
  return p->valid > 0;
}

// A dictionary has changed: whether the rows that read it find what they found.
static bool group_holds(machine& m, const range& g) {
  const row* rows = part<row>(m.p, m.p->at_rows);
  m.p->partials++;
  for (word i = g.first; i < g.first + g.count; i++) {
    bool owned;
    if (rows[i].kind >= TYPE ? !holds(m, rows[i]) : read(m, rows[i], owned) != m.regs[rows[i].to]) return false;
  }
  return true;
}

static bool same_words(program* p, word& place) {
  const stamp* stamps = part<stamp>(p, p->at_stamps);
  for (place = 0; place < p->stamps; place++)
    if (*stamps[place].at != stamps[place].value) return false;
  return true;
}

static const word most_repairs = 8;

// A dictionary that has changed elsewhere gets a new stamp. What looks it up might run Python code, in the class of a
// strange key, so that all words are compared once more.
static bool stamps_hold(machine& m) {
  program* p = m.p;
  word place, repairs = 0;
  while (!same_words(p, place)) {
    const range& g = part<range>(p, p->at_ranges)[place];
    stamp& changed = part<stamp>(p, p->at_stamps)[place];
    word version = *changed.at;
    if (!g.count || ++repairs > most_repairs || !group_holds(m, g)) return false;
    changed.value = version;
  }
  const row* rows = part<row>(p, p->at_rows);
  const word* always = part<word>(p, p->at_always);
  for (word i = 0; i < p->always; i++) {
    const row& r = rows[always[i]];
    bool owned;
    if (r.kind >= TYPE ? !holds(m, r) : read(m, r, owned) != m.regs[r.to]) return false;
  }
  return true;
}

// Rows that start at arguments, and those that run Python code; what they find is referred to until `let_go`.
static bool dynamic_rows_hold(machine& m, word& done) {
  const row* rows = part<row>(m.p, m.p->at_rows);
  for (; done < m.p->rows; done++) {
    const row& r = rows[done];
    if (r.kind == PREDICATE) {
      object* broken = called(m, r);
      bool fine = broken && broken != py.yes;
      if (broken) py.release(broken);
      if (!fine) return false;
      continue;
    }
    if (r.kind >= TYPE) {
      if (!holds(m, r)) return false;
      continue;
    }
    bool owned;
    object* found = read(m, r, owned);
    if (!found) return false;
    if (!owned) py.hold(found);
    m.regs[r.to] = found;
  }
  return true;
}

static void let_go(machine& m, word done) {
  const row* rows = part<row>(m.p, m.p->at_rows);
  while (done-- > m.p->statics)
    if (rows[done].kind < TYPE) {
      object* held = m.regs[rows[done].to];
      m.regs[rows[done].to] = py.none;
      py.release(held);
    }
}

// Refer to constants only, which are what they are as long as they are there.
static void keep_constants(machine& m) {
  const word* constants = part<word>(m.p, m.p->at_constants);
  word next = 0;
  for (word i = 0; i < m.p->registers; i++) {
    if (next < m.p->constants && constants[next] == i) { next++; continue; }
    py.hold(py.none);
    py.list_set(m.kept, i, py.none);
  }
}

static bool all_holds(machine& m, word& done) {
  if (!same_state(m.p)) return false;
  if (m.p->valid > 0) {
    bool fine = dynamic_rows_hold(m, done);
    if (stamps_hold(m)) return fine;
  }
  let_go(m, done);
  done = m.p->statics;
  m.p->valid = 0;
  bool fine = evaluate_all(m);
  if (!fine) m.p->valid = 0;
  keep_constants(m);
  if (!fine) return false;
  return dynamic_rows_hold(m, done) && stamps_hold(m);
}

// check(args, kwargs): self is a list of the program's buffer, `kept` and the objects that rows name.
extern "C" object* lamina_guards_check(object* self, object* const* given, word count) {
  object* buffer = count == 2 && py.list_size(self) == 3 ? py.list_item(self, 0) : 0;
  program* p = buffer ? (program*)py.bytes(buffer) : 0;
  if (!p || p->busy) {
    if (py.failed()) py.clear();
    py.hold(py.none);
    return py.none;
  }
  machine m = {p, py.list_item(self, 1), py.list_item(self, 2), given[0], given[1], part<object*>(p, p->at_registers)};
  py.hold(self);
  py.hold(buffer);
  p->busy = 1;
  word done = p->statics;
  object* found = 0;
  if (all_holds(m, done)) {
    p->hits++;
    const word* wanted = part<word>(p, p->at_results);
    object** held = (object**)__builtin_alloca((p->results + 1) * sizeof(object*));
    for (word i = 0; i < p->results; i++) py.hold(held[i] = m.regs[wanted[i]]);
    found = py.new_tuple(p->results);
    for (word i = 0; i < p->results; i++)
      if (!found || py.tuple_set(found, i, held[i])) py.release(held[i]);
  }
  let_go(m, done);
  p->busy = 0;
  if (py.failed()) py.clear();
  py.release(buffer);
  py.release(self);
  if (!found) py.hold(found = py.none);
  return found;
}

// The answers of the queries now.
extern "C" void lamina_guards_state(word count, const query* queries, word* answers) {
  for (word i = 0; i < count; i++) answers[i] = asked(queries[i]);
}

// The head of a tensor, for rows LOOK; 0 if it has none.
extern "C" word lamina_guards_head(object* t, word* head) {
  if (!lay.under || (t->type != py.tensor && t->type != py.parameter)) return 0;
  const word* under = (const word*)at(t, lay.under);
  if (!under || under[lay.dimensions] > lay.most) return 0;
  head[0] = 1;
  for (word k = 0; k < lay.words; k++) head[1 + k] = under[k] & lay.bits[k];
  for (word trial = 0; trial < 4; trial++) {
    head[1 + lay.words] = trial & 1;
    head[2 + lay.words] = trial >> 1;
    if (looks(t, head)) return 1;
  }
  return 0;
}
