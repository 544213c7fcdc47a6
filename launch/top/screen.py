"""The screen of `hybridgen top`: asks once a second, draws, listens to keys."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static

from hybridgen.errors import HybridGenError
from hybridgen.launch.process_table import headline
from hybridgen.launch.top.figure_lines import figure_lines
from hybridgen.launch.top.figures import figures, process_rates
from hybridgen.launch.top.rows import COLUMNS, ORDERS, details, rows
from hybridgen.messages import ProcessList

_STYLES = {
    "ready": "green",
    "starting": "yellow",
    "draining": "yellow",
    "waiting": "red",
    "unhealthy": "red",
}


class TopScreen(App[None]):
    """Shows one tree until told to quit, whatever happens to its processes meanwhile.

    Args:
        look: asks the tree; called in a thread of its own, one call at a time.
        uri: of the tree.
        interval_s: between two looks.
    """

    CSS = """
    #head { text-style: bold; padding: 0 1; }
    #figures { padding: 0 1 1 1; }
    DataTable { height: 1fr; }
    #details { display: none; height: auto; max-height: 50%; padding: 0 1; border-top: solid gray; }
    #details.shown { display: block; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("s", "sort", "Sort"),
        Binding("p,space", "pause", "Pause"),
        Binding("enter,d", "details", "Details", priority=True),
        Binding("escape", "hide_details", "Back", show=False),
    ]

    def __init__(self, look: Callable[[], ProcessList], uri: str, interval_s: float) -> None:
        super().__init__()
        self._look = look
        self._uri = uri
        self._interval_s = interval_s
        self._before: ProcessList | None = None
        self._now: ProcessList | None = None
        self._trouble = ""
        self._order = ORDERS[0]
        self._is_paused = self._is_asking = False

    def compose(self) -> ComposeResult:
        """The parts from top to bottom."""
        yield Static(id="head")
        yield Static(id="figures")
        yield DataTable[Text](cursor_type="row", zebra_stripes=True)
        yield Static(id="details")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to ask."""
        self.title = "hybridgen top"
        table = self._table
        for column in COLUMNS:
            table.add_column(column.name, key=column.name)
        table.focus()
        self.query_one("#head", Static).update(f"{self._uri}  …")
        self._ask_next()
        self.set_interval(self._interval_s, self._ask_next)

    # --- keys -----------------------------------------------------------------------------------

    def action_sort(self) -> None:
        """Go to the next order."""
        self._order = ORDERS[(ORDERS.index(self._order) + 1) % len(ORDERS)]
        self._draw()

    def action_pause(self) -> None:
        """Hold the picture, or let it go on."""
        self._is_paused = not self._is_paused
        self._draw()

    def action_details(self) -> None:
        """Show or hide everything about the process under the cursor."""
        self.query_one("#details").toggle_class("shown")
        self._draw_details()

    def action_hide_details(self) -> None:
        """Hide it."""
        self.query_one("#details").remove_class("shown")

    def on_data_table_row_highlighted(self) -> None:
        """The cursor moved."""
        self._draw_details()

    # --- asking ---------------------------------------------------------------------------------

    def _ask_next(self) -> None:
        """Look at the tree, unless the picture is held or the last look is not over yet."""
        if not self._is_paused and not self._is_asking:
            self._is_asking = True
            self._ask()

    @work(thread=True, exit_on_error=False)
    def _ask(self) -> None:
        try:
            tree = self._look()
        except HybridGenError as error:
            self.call_from_thread(self._fail, str(error))
        else:
            self.call_from_thread(self._take, tree)

    def _take(self, tree: ProcessList) -> None:
        self._is_asking = False
        if self._is_paused:
            return  # it was asked for before
        self._before, self._now, self._trouble = self._now, tree, ""
        self._draw()

    def _fail(self, trouble: str) -> None:
        self._is_asking = False
        self._trouble = trouble
        self._draw()

    # --- drawing --------------------------------------------------------------------------------

    @property
    def _table(self) -> DataTable[Text]:
        table: DataTable[Text] = self.query_one(DataTable)
        return table

    def _draw(self) -> None:
        if self._now is None:
            self.query_one("#head", Static).update(f"{self._uri}  {self._trouble}")
            return
        notes = [f"sorted by {self._order}"]
        notes += ["paused"] if self._is_paused else []
        notes += [self._trouble] if self._trouble else []
        head = f"{headline(self._now, self._uri)}, {', '.join(notes)}"
        self.query_one("#head", Static).update(Text(head))
        lines = figure_lines(figures(self._before, self._now))
        self.query_one("#figures", Static).update(Text("\n".join(lines)))
        self._draw_table(self._now)
        self._draw_details()

    def _draw_table(self, tree: ProcessList) -> None:
        table = self._table
        shown = rows(tree, process_rates(self._before, tree), self._order)
        for name, cells in shown.items():
            texts = [Text(cell, _STYLES.get(cell, "")) for cell in cells]
            if name not in table.rows:
                table.add_row(*texts, key=name)
                continue
            for column, text in zip(COLUMNS, texts, strict=True):
                table.update_cell(name, column.name, text, update_width=True)
        for gone in [key for key in table.rows if key.value not in shown]:
            table.remove_row(gone)
        place = {name: number for number, name in enumerate(shown)}
        chosen = self._chosen()
        table.sort(COLUMNS[0].name, key=lambda cell: place[cell.plain.lstrip("├└─ ")])
        if chosen is not None:
            table.move_cursor(row=table.get_row_index(chosen))

    def _chosen(self) -> str | None:
        """The process under the cursor."""
        table = self._table
        if not table.is_valid_row_index(table.cursor_row):
            return None
        return table.coordinate_to_cell_key((table.cursor_row, 0)).row_key.value  # type: ignore[arg-type]  # a pair will do

    def _draw_details(self) -> None:
        pane, chosen = self.query_one("#details", Static), self._chosen()
        if self._now is None or not pane.has_class("shown"):
            return
        rates = process_rates(self._before, self._now)
        for process in self._now.processes:
            if process.name == chosen:
                pane.update(_in_two_columns(details(process, rates[process.name])))


def _in_two_columns(pairs: list[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 3))
    half = (len(pairs) + 1) // 2
    for left, right in zip_longest(pairs[:half], pairs[half:], fillvalue=("", "")):
        cells = zip((*left, *right), ("dim", "", "dim", ""), strict=True)
        grid.add_row(*(Text(text, style) for text, style in cells))
    return grid
