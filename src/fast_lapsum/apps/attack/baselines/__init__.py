"""The attacks of other papers, written from them, behind one interface."""
